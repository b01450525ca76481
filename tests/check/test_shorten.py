"""Scripts hold of plain files what they need, and no more."""

from textwrap import dedent

from posenc.tools.check import Batch
from posenc.tools.check.checks import CHECKS
from posenc.tools.check.standalone import needed, script
from posenc.tools.check.trial import Case
from tests.check.small import WRONG

FIRST = dedent('''
    """A file."""

    import math
    from collections import Counter, deque
    from posenc.tools.check import other

    # Why it is so.
    LIMIT = 3  # tokens
    UNUSED = deque()


    class Kept:
        """It is kept.

        And this is long.
        """

        def twice(self, other: "Marked") -> int:
            return LIMIT * math.floor(2)


    class Gone:
        """It is not."""


    class Marked:
        """It is named in quotation marks."""
''')
SECOND = dedent('''
    import math
    from posenc.tools.check.first import Kept


    def used(x):
        """It is used.

        This stays."""
        return Kept(math.ceil(x))


    def unused(x):
        return Counter(x)
''')


def test_names_are_followed_from_file_to_file() -> None:
    found = needed({"first": FIRST, "second": SECOND, "third": "def alone(): pass\n"}, {"used"})
    assert list(found) == ["first", "second"]
    assert (
        found["first"]
        == dedent('''
        import math

        # Why it is so.
        LIMIT = 3  # tokens


        class Kept:
            """It is kept."""

            def twice(self, other: "Marked") -> int:
                return LIMIT * math.floor(2)


        class Marked:
            """It is named in quotation marks."""
    ''').strip()
    )
    assert (
        found["second"]
        == dedent('''
        def used(x):
            """It is used.

            This stays."""
            return Kept(math.ceil(x))
    ''').strip()
    )


def test_a_script_has_no_other_kind_of_subject_and_no_other_trial() -> None:
    padding = next(entry for entry in CHECKS if entry.name == "padding")
    plain = script(WRONG, padding.trials[0], Case(Batch([[1, 2]])), "").partition("# -- the subject")[0]
    for held in ("class Rotary(", "class Subject:", "def near(", f"def {padding.trials[0].function.__name__}("):
        assert held in plain
    for left in ("class Layer(", "class Bias(", "class Attention(", "def what_padding_holds", "def holdings"):
        assert left not in plain
