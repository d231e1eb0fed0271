#!/bin/sh
# All that docs/performance.md shows: sh measure.sh PYTHON_OF_PEERS, in the environment of implicitq, on a machine that
# does nothing else, with two cores or more. Every part can be left out of the list: PARTS="peers growth" sh measure.sh ...
set -eu
here=$(cd "$(dirname "$0")" && pwd)
for part in ${PARTS:-peers bench-512 bench-256 growth seeds}; do
  case $part in
    peers) python "$here/run.py" "$1" ;;
    bench-512) taskset -c 0,1 implicitq bench iq --repeats 3 --json > "$here/bench-512-2-cores.json" ;;
    bench-256)
      taskset -c 1 implicitq bench iq-auto --hidden 256 256 --repeats 3 --json > "$here/bench-256-1-core.json"
      ;;
    growth)
      taskset -c 1 implicitq bench iq-auto --hidden 256 256 --growth --repeats 3 --json > "$here/growth-256-1-core.json"
      ;;
    seeds)
      for setting in "miq --hidden 64 64" "iq-auto --hidden 64 64" "miq --hidden 256 256"; do
        taskset -c 1 python "$here/../seeds.py" --json --algorithm $setting
      done > "$here/seeds-1-core.jsonl"
      ;;
  esac
done
python "$here/page.py"
