#!/bin/sh
# Break a node and watch: a GPU falls off the bus under a running job, and everything that follows is real.
#
# Run it:
#   sickbay up --detach
#   sh examples/03_break_a_node.sh
#
# The job is stopped on the sick node and goes on elsewhere, from its last checkpoint. Meanwhile the node is rebooted,
# checked, and put back to work. In another terminal `sickbay top` shows it live. The wrong repair would not help: with
# `--cured-by replace` the reboot is tried, the check fails, and the ladder goes one rung up.
set -eu

id() { python -c 'import json, sys; print(json.load(sys.stdin)["id"])'; }
first_node() { python -c 'import json, sys; print(json.load(sys.stdin)["nodes"][0])'; }
step() { python -c 'import json, sys; print(json.load(sys.stdin)["step"] or 0)'; }

job=$(sickbay submit --name watch --nodes 3 --json -- python -m sickbay.train.sample --steps 150 | id)
echo "submitted $job; it trains until step 20 …"
while [ "$(sickbay job "$job" --json | step)" -lt 20 ]; do sleep 0.2; done

# Of three of the four nodes the first is always one of the same two. The third node that shows one fault within ten
# minutes would put the brake on: then somebody must look before anything is repaired (docs/runbooks/brake.md).
node=$(sickbay job "$job" --json | first_node)
echo "breaking GPU 0 of $node"
sickbay inject "$node" --xid 79 --cured-by reboot

echo "following the job to its end …"
while sickbay job "$job" --json | grep -qE '"state": ?"(QUEUED|GATING|RUNNING|STOPPING|DIAGNOSING)"'; do sleep 0.5; done

sickbay explain "$node"    # the illness: what was seen, decided and done
sickbay explain "$job"     # the interruption: how long each stage took
sickbay job "$job" --json | grep -qE '"state": ?"COMPLETE"'
