"""One process, or several that `torchrun` started, each with environments of its own.

torch.distributed does all the work: DistributedDataParallel adds up the gradients of the processes.
"""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def choose_device():
    """Gives each process one GPU, as its only one. Has to come before Genesis is imported, which looks for them."""
    rank = os.environ.get("LOCAL_RANK")
    if rank is None:
        return
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = visible.split(",") if visible else None
    os.environ["CUDA_VISIBLE_DEVICES"] = devices[int(rank)] if devices else rank


class Processes:
    """All processes of this training.

    Args:
        device_type (str): "cpu" or "cuda".
    """

    def __init__(self, device_type):
        self.rank, self.count = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        self.are_several = self.count > 1
        if self.are_several:
            dist.init_process_group("nccl" if device_type == "cuda" else "gloo")

    def share(self, network):
        """The network, with the weights of the first process and gradients that are the mean over all."""
        return DistributedDataParallel(network) if self.are_several else network

    def mean(self, value):
        """The mean of a scalar tensor over all processes."""
        total = value.clone()
        if self.are_several:
            dist.all_reduce(total)
        return float(total) / self.count

    def agree(self, values):
        """Whether a tensor has the same bits in all processes."""
        if not self.are_several:
            return True
        everywhere = [torch.empty_like(values) for _ in range(self.count)]
        dist.all_gather(everywhere, values)
        return all(values.equal(other) for other in everywhere)

    def all_true(self, truth, device):
        """Whether something holds in all processes."""
        return self.mean(torch.tensor(float(truth), device=device)) == 1.0

    def close(self):
        """Leaves the group."""
        if self.are_several:
            dist.destroy_process_group()
