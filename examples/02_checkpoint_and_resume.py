"""Checkpoint and resume: a rank dies in the middle, and the job goes on where its last checkpoint was.

Run it:
    sickbay up --detach
    sickbay submit --name resume --nodes 2 --wait -- python examples/02_checkpoint_and_resume.py
    sickbay explain resume-1a2b3c4d

The first attempt kills its own rank 1 at step 35, as the kernel does when memory is short. Both ranks had saved step
30; the second attempt finds it and begins at step 31. Of a script, Sickbay needs three lines:

    checkpoints = train.Checkpoints()       where, which attempt, which rank: all from the environment
    checkpoints.save(step, state)           every rank calls it; a copy is taken, the disk is written meanwhile
    train.heartbeat(step, loss)             so that a hang is noticed, and `sickbay jobs` shows the step
"""

import os
import signal
import time

from sickbay import train

STEPS, EVERY, DIES_AT = 60, 10, 35

with train.Checkpoints() as checkpoints:
    state = checkpoints.load() or {"step": 0, "weight": 0.0}
    print(f"rank {checkpoints.rank}, attempt {checkpoints.attempt}: begins after step {state['step']}", flush=True)
    for step in range(state["step"] + 1, STEPS + 1):
        time.sleep(0.05)  # the work
        state = {"step": step, "weight": state["weight"] + 0.1 * (3.0 - state["weight"])}
        train.heartbeat(step, loss=(3.0 - state["weight"]) ** 2)
        if step % EVERY == 0:
            checkpoints.save(step, state)
        if step == DIES_AT and checkpoints.attempt == 1 and checkpoints.rank == 1:
            checkpoints.wait()  # only so that this example always tells the same story
            os.kill(os.getpid(), signal.SIGKILL)
    print(f"rank {checkpoints.rank}: done, weight {state['weight']:.3f}", flush=True)
