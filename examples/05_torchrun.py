"""Torch with torchrun across two nodes, with checkpoints by torch.distributed.checkpoint. Needs torch 2.3 or newer.

Run it:
    sickbay up --detach
    sickbay submit --name torch --nodes 2 --wait -- sh examples/05_torchrun.sh
    sickbay explain torch-1a2b3c4d

The job's command is torchrun itself, once on each node (see 05_torchrun.sh); it starts the workers, which run this
file. It trains a small model on the CPU (gloo), so it runs without a GPU too. To see it survive, break a node while it
trains: `sickbay inject node-0 --xid 79`.
"""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from sickbay import train
from sickbay.train import torch as sickbay_torch

STEPS, EVERY = 60, 10


def main() -> None:
    dist.init_process_group("gloo")  # on GPUs: "cpu:gloo,cuda:nccl"
    # Checkpoints are written in the background while training goes on: their messages need a group of their own, on the
    # CPU, or they would meet those of the gradients and both would wait for ever.
    saving = dist.new_group(backend="gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    with train.Checkpoints() as checkpoints:
        state = {"model": model.module.state_dict(), "step": torch.zeros(1)}
        if sickbay_torch.load(checkpoints, state, process_group=saving):
            model.module.load_state_dict(state["model"])
        begin = int(state["step"].item())
        print(f"rank {dist.get_rank()}: begins after step {begin}", flush=True)
        for step in range(begin + 1, STEPS + 1):
            # The data of a step depends on the step, so that a resumed run sees what an unbroken one would have seen.
            generator = torch.Generator().manual_seed(step * 1000 + dist.get_rank())
            x = torch.randn(32, 8, generator=generator)
            loss = ((model(x) - x.sum(dim=1, keepdim=True)) ** 2).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            time.sleep(0.1)  # a model of this size would be done before anybody could break a node
            train.heartbeat(step, loss=loss.item())
            if step % EVERY == 0 or sickbay_torch.should_save():  # asked before a drain or a stop: no step is lost
                now = {"model": model.module.state_dict(), "step": torch.tensor([float(step)])}
                sickbay_torch.save(checkpoints, step, now, process_group=saving)
            if sickbay_torch.should_end():  # the same answer on all ranks: none leaves the others in a collective
                break
    if sickbay_torch.should_end():
        sys.exit(143)  # 0 would mean that the job is done
    print(f"rank {dist.get_rank()}: done, loss {loss.item():.4f}, world {os.environ['WORLD_SIZE']}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
