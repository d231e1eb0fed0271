#!/bin/sh
# Makes a virtual environment with Stable-Baselines3 and SBX, of fixed versions: sh make.sh DIR [PYTHON]; 2 GB.
# Torch comes first: where a build for processors alone is at hand, the rest must not bring the one for accelerators.
set -eu
directory=$1
python=${2:-python3}
test -x "$directory/bin/python" || "$python" -m venv "$directory"
"$directory/bin/python" -m pip install --quiet torch==2.13.0
"$directory/bin/python" -m pip install --quiet stable-baselines3==2.9.2 sbx-rl==0.28.0 jax==0.10.2 jaxlib==0.10.2 \
  flax==0.12.8 numpy==2.4.6 "gymnasium[mujoco]==1.4.0" mujoco==4.0.0
"$directory/bin/python" -m pip check
