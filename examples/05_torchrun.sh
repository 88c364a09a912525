#!/bin/sh
# What runs on each node of example 05; 05_torchrun.py says how to submit it.
#
# Sickbay has told this process where the others are: here one rank is one torchrun. Its own restarts are off
# (--max-restarts=0): a torchrun that restarts workers by itself knows nothing of a sick node, and Sickbay does.
#
# join_timeout is kept longer than a repair. Sickbay starts all nodes of an attempt together, but where something else
# starts them, those that are well wait at the rendezvous for the one that is being healed: with torchrun's default of
# ten minutes they would give up during a reboot. Two hours outlast a reboot (15 m), a replacement (1 h) and the check
# after each (15 m) by the default policy.
set -eu
exec torchrun \
  --nnodes="$WORLD_SIZE" \
  --nproc-per-node=1 \
  --max-restarts=0 \
  --rdzv-id="$SICKBAY_JOB_ID-$SICKBAY_ATTEMPT" \
  --rdzv-backend=c10d \
  --rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT" \
  --rdzv-conf=join_timeout=7200,read_timeout=300 \
  --local-addr=127.0.0.1 \
  "$(dirname "$0")/05_torchrun.py"
