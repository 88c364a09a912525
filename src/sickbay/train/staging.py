"""Staging: a copy of a state on the host that DCP can write while training goes on, in memory that is used again.

torch's own stagers differ from version to version: some leave tensors that are on the CPU where they are, some make
new memory for every save, some cannot be used twice.
"""

import copy
from collections import defaultdict
from collections.abc import Iterable, MutableMapping
from importlib import import_module
from typing import Any

torch: Any = import_module("torch")


class Staging:
    """Memory of one save at a time: `take` may be called again when what it gave is written."""

    def __init__(self) -> None:
        self._kept: list[tuple[bool, Any]] = []  # whether it is pinned, and the memory
        self._free: defaultdict[tuple[bool, int], list[Any]] = defaultdict(list)
        self._copying: set[Any] = set()  # GPUs that must finish before the copies may be read

    @property
    def size(self) -> int:
        return sum(len(host) for _, host in self._kept)

    def take(self, state: Any) -> Any:
        """The same state, of the same containers, in which nothing changes any more."""
        # By size, not by place or name: each buffer is given out once, whatever has become of the state since.
        self._free.clear()
        for pinned, host in reversed(self._kept):
            self._free[pinned, len(host)].append(host)
        self._kept, self._copying = [], set()
        with torch.inference_mode(False), torch.no_grad():
            staged = self._copy(state)
        for device in self._copying:
            torch.cuda.current_stream(device).synchronize()
        self._free.clear()
        return staged

    def _copy(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        # DCP pickles a container that holds no tensor as it is: so all stay what they are.
        if isinstance(value, MutableMapping):
            twin = copy.copy(value)
            for key, held in value.items():
                twin[key] = self._copy(held)
            return twin
        if isinstance(value, list):
            twins = copy.copy(value)
            twins[:] = self._all(value)
            return twins
        if type(value) is tuple:
            return tuple(self._all(value))
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*self._all(value))
        return copy.deepcopy(value)

    def _all(self, values: Iterable[Any]) -> list[Any]:
        return [self._copy(value) for value in values]

    def _tensor(self, value: Any) -> Any:
        if hasattr(value, "_local_tensor") and hasattr(value, "to_local"):  # a DTensor: of its share, under its name
            twin = value.detach()
            twin._local_tensor = self._tensor(value._local_tensor)  # noqa: SLF001  # as torch's own stagers do
            return twin
        if hasattr(value, "local_shards"):  # a ShardedTensor
            return value.cpu() if any(one.tensor.is_cuda for one in value.local_shards()) else copy.deepcopy(value)
        plain = type(value) in {torch.Tensor, torch.nn.Parameter}
        if not plain or value.layout is not torch.strided or value.is_quantized or value.is_nested or value.is_meta:
            return value.detach().clone().cpu()
        source = value.detach().resolve_conj().resolve_neg()
        size = source.numel() * source.element_size()
        if size == 0:
            return torch.empty(source.shape, dtype=source.dtype)
        host = self._host(size, pinned=source.is_cuda).view(source.dtype).view(source.shape)
        host.copy_(source, non_blocking=source.is_cuda)
        if source.is_cuda:
            self._copying.add(source.device)
        return host

    def _host(self, size: int, *, pinned: bool) -> Any:
        free = self._free[pinned, size]
        host = free.pop() if free else torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
        self._kept.append((pinned, host))
        return host
