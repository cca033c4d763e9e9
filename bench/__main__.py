"""`python -m bench [NAME …]`: measures, prints the table, and writes it with all numbers to results/."""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from bench.measure import Plan
from bench.pages import publish
from bench.report import RESULTS
from bench.runs import BENCHES


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Side-by-side measurements.")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"which: {', '.join(BENCHES)}; all by default"
    )
    parser.add_argument("--repetitions", type=int, default=Plan().repetitions)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the results")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.names) - set(BENCHES))
    if unknown:
        parser.error(f"there is no {', '.join(unknown)}; there are {', '.join(BENCHES)}")
    for name in options.names or BENCHES:
        print(f"measuring {name}", file=sys.stderr)
        report = BENCHES[name](replace(Plan(), repetitions=options.repetitions))
        table = report.write(options.out).read_text(encoding="utf-8")
        print(table)
        if options.out == RESULTS:
            for page in publish(name, table):
                print(f"updated {page}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
