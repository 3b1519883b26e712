"""python -m proving.histories --seeds FROM-TO | --seed N [--only STEPS] [--shrink] [--plant FAULT]

--seeds: run these histories; a line for each that shows what none may, then their number and the time.
--seed: print one history; status 1 if it shows something. --only: of its plan, only these steps. --shrink: drop steps
while it still shows something, and print what is left. --plant: with a fault of plants.py in the product.
"""

from __future__ import annotations

import argparse
import os
import sys
import time


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m proving.histories", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--seeds", metavar="FROM-TO")
    what.add_argument("--seed", type=int, metavar="N")
    parser.add_argument("--only", metavar="STEPS", help="numbers such as 0,3,7")
    parser.add_argument("--shrink", action="store_true")
    parser.add_argument("--plant", metavar="FAULT")
    parser.add_argument(
        "--first", action="store_true", help="with --seeds: end at the first history that shows something"
    )
    arguments = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is a part of a history
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "proving.histories", *sys.argv[1:]])  # noqa: S606
    if arguments.plant:
        from proving.histories.plants import plant

        plant(arguments.plant)
    from proving.histories.history import History
    from proving.histories.plan import make_plan
    from proving.histories.shrink import shrink

    if arguments.seeds:
        first, _, last = arguments.seeds.partition("-")
        return run_all(int(first), int(last or first), arguments.first)
    plan = make_plan(arguments.seed)
    if arguments.only is not None:
        plan.steps = [plan.steps[int(n)] for n in arguments.only.split(",") if n]
    if arguments.shrink:
        plan, kept = shrink(plan)
        print(f"python -m proving.histories --seed {plan.seed} --only {','.join(map(str, kept))}")
    result = History(plan).run()
    print(plan)
    print("\n".join(result.lines))
    print(f"digest {result.digest}")
    for line in result.wrong:
        print(f"WRONG: {line}")
    return int(bool(result.wrong))


def run_all(first: int, last: int, until_one: bool) -> int:
    from proving.histories.history import History
    from proving.histories.plan import make_plan

    began, bad = time.perf_counter(), 0

    def spent() -> str:
        return f"{time.perf_counter() - began:.1f} s, {time.process_time():.1f} s of CPU"

    for seed in range(first, last + 1):
        result = History(make_plan(seed)).run()
        if result.wrong:
            bad += 1
            print(f"seed {seed} ({spent()}): {'; '.join(result.wrong)[:400]}", flush=True)
            if until_one:
                break
        elif seed % 100 == 0:
            print(f"to seed {seed}: {bad} wrong, {spent()}", flush=True)
    print(f"{seed - first + 1} histories, {bad} of them wrong, {spent()}")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
