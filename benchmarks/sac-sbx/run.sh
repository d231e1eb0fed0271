#!/usr/bin/env bash
# SAC of implicitq, with both kinds of warm-up, beside SBX's SAC: HalfCheetah-v5, 256-256, 100,000 steps, seeds 0 1 2, one core each.
# Usage: run.sh DIR PYTHON_OF_SBX. Finished runs are skipped; SBX's start again if they were stopped.
set -euo pipefail
out=$1 sbx_python=$2 here=$(cd "$(dirname "$0")" && pwd)

(
  for warmup in policy uniform; do
    for seed in 0 1 2; do
      folder=$out/sac-256-$warmup-seed$seed
      if [ -e "$folder/config.json" ]; then
        taskset -c 0 implicitq resume "$folder" || true # refused, with a sentence, if it is finished
      else
        taskset -c 0 implicitq train sac --env HalfCheetah-v5 --steps 100000 --out "$folder" \
          --hidden 256 256 --min-replay 5000 --warmup "$warmup" --seed "$seed"
      fi
    done
  done
) &
taskset -c 1 "$sbx_python" "$here/run_sbx.py" "$out" &
wait
implicitq random-scores "$out" --suite "$here/suite.toml"
