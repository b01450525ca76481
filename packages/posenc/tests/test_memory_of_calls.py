import torch

from posenc.command.memory import peak_bytes

MEGABYTE = 2**20


def test_the_peak_is_counted_and_not_the_sum() -> None:
    def three_in_turn_of_which_two_together() -> torch.Tensor:
        first = torch.empty(4 * MEGABYTE, dtype=torch.uint8)
        del first
        second = torch.empty(3 * MEGABYTE, dtype=torch.uint8)
        return second + torch.empty(2 * MEGABYTE, dtype=torch.uint8)[:1]

    # 3 + 2 and the sum's 3: a few bytes more for what arithmetic needs
    peak = peak_bytes(three_in_turn_of_which_two_together)
    assert 8 * MEGABYTE <= peak < 8 * MEGABYTE + 4096


def test_what_was_there_before_does_not_count() -> None:
    kept = torch.zeros(2 * MEGABYTE)
    assert peak_bytes(lambda: kept.sum()) < MEGABYTE
