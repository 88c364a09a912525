"""A first job: any script will do. It imports nothing of Sickbay, and still runs, is watched, and is restarted.

Run it:
    sickbay up --detach
    sickbay submit --name first --nodes 2 --wait -- python examples/01_first_job.py
    sickbay logs first-1a2b3c4d --rank 1

(The job's id is printed by `submit`; yours ends differently.)

The command is started once on each node. What torchrun would tell a rank is in its environment, and so is the number
of the attempt: 1 at first, 2 after the first restart. A job is COMPLETE when every rank has ended with 0.
"""

import os
import time

rank, world = os.environ["RANK"], os.environ["WORLD_SIZE"]
attempt = os.environ["SICKBAY_ATTEMPT"]
print(f"rank {rank} of {world} begins, attempt {attempt}", flush=True)
for step in range(1, 21):
    time.sleep(0.05)  # the work
    if step % 5 == 0:
        print(f"rank {rank}: step {step}", flush=True)
print(f"rank {rank} is done", flush=True)
