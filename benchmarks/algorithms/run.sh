#!/usr/bin/env bash
# Every algorithm on small tasks (3 seeds) and on HalfCheetah-v5 (100,000 steps), two runs at a time, one core each.
# Usage: run.sh DIR [SUITE...], suites: pendulum cartpole halfcheetah (default: all).
# Finished runs are skipped, stopped ones go on where they were. Then: python ../collect.py DIR results
set -euo pipefail
out=$1
shift
suites=${*:-pendulum cartpole halfcheetah}

jobs_of() { # suite -> lines of: algorithm env seed flags...
  case $1 in
    pendulum)
      for seed in 0 1 2; do
        for algorithm in iq miq iq-gaussian miq-gaussian pcl trust-pcl sac; do
          echo "$algorithm Pendulum-v1 $seed"
        done
      done ;;
    cartpole)
      for seed in 0 1 2; do
        for algorithm in iq miq pcl trust-pcl mdqn dqn; do
          echo "$algorithm CartPole-v1 $seed"
        done
      done ;;
    halfcheetah)
      flags="--steps 100000 --hidden 256 256 --min-replay 5000"
      for algorithm in miq pcl trust-pcl iq-gaussian; do # IQ: ../halfcheetah-iq, SAC: ../sac-sbx
        echo "$algorithm HalfCheetah-v5 0 $flags"
      done ;;
    *)
      echo "unknown suite $1; known: pendulum cartpole halfcheetah" >&2
      return 1 ;;
  esac
}

run() { # core, algorithm, env, seed, flags...
  local core=$1 algorithm=$2 env=$3 seed=$4 folder
  folder=$out/$env-$algorithm-seed$seed
  shift 4
  if [ -e "$folder/config.json" ]; then
    taskset -c "$core" implicitq resume "$folder" || true # refused, with a sentence, if it is finished
  else
    taskset -c "$core" implicitq train "$algorithm" --env "$env" --seed "$seed" --out "$folder" "$@"
  fi
}

mapfile -t jobs < <(for suite in $suites; do jobs_of "$suite"; done)
for core in 0 1; do
  (
    for ((i = core; i < ${#jobs[@]}; i += 2)); do
      # shellcheck disable=SC2086
      run "$core" ${jobs[$i]} </dev/null
    done
  ) &
done
wait
