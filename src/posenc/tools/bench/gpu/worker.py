"""A process that runs the items of a step, as they are named on its standard input:

python -m posenc.tools.bench.gpu.worker PLAN STEP DESCRIPTOR [dry]

It writes a line of JSON to the descriptor when it is ready, and one for each item. It ends at once when its input does,
that is, with the process that started it.
"""

import json
import os
import queue
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from posenc.tools.bench.gpu.place import Place
from posenc.tools.bench.gpu.plans import PLANS


def main() -> None:
    plan, name, descriptor, *dry = sys.argv[1:]
    asked: queue.Queue[str] = queue.Queue()
    given = os.fdopen(os.dup(0))  # pytest takes the standard input away
    begun = time.perf_counter()

    def listen() -> None:
        for line in given:
            asked.put(line.rstrip("\n"))
        os._exit(0)

    def names() -> Iterator[str]:
        nonlocal begun
        while True:
            item = asked.get()
            begun = time.perf_counter()
            print(f"-- {name}: {item}", flush=True)  # in the log
            yield item

    def say(record: dict[str, Any]) -> None:
        os.write(int(descriptor), json.dumps(record).encode() + b"\n")

    def answer(item: str, found: dict[str, Any]) -> None:
        say({"item": item, "seconds": round(time.perf_counter() - begun, 3), **found})

    threading.Thread(target=listen, daemon=True).start()
    place = Place(bool(dry))
    step = next(step for step in PLANS[plan] if step.name == name)

    def ready() -> None:
        say({"ready": True})

    step.serve(place, names(), ready, answer)


if __name__ == "__main__":
    main()
