#!/usr/bin/env bash
# Prints the path of a promtool, fetching Debian's when this machine has none. Needs no root.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tests/stack/testbed/env.sh
. "$here/env.sh"
if command -v promtool; then exit 0; fi
promtool=$TESTBED_HOME/promtool/root/usr/bin/promtool
[ -x "$promtool" ] || fetch_debs "$TESTBED_HOME/promtool" promtool/"$ENGINE_SUITE"
"$promtool" --version >/dev/null || die "$promtool does not run on this machine"
echo "$promtool"
