"""Kernels that do wrong, each in a process of its own: `python bad_kernels.py KIND`. What the driver says is the point.

Written in PTX and loaded through libcuda, so that neither a compiler nor a framework is needed.
"""

import ctypes
import sys
import time

KERNELS = {
    # A word written to an odd address: Xid 13.
    "misaligned": "st.global.u32 [%rd1+1], %r1;",
    # A word written where nothing is mapped: Xid 31.
    "illegal": "mov.u64 %rd2, 0xdead0000b000; st.global.u32 [%rd2], %r1;",
    # The program's own wish to die.
    "trap": "trap;",
    # Never ends; whoever started it is killed.
    "spin": "LOOP: ld.volatile.global.u32 %r2, [%rd1]; setp.ne.u32 %p1, %r2, 7; @%p1 bra LOOP;",
    "none": "st.global.u32 [%rd1], %r1;",
}
PTX = """.version 7.8
.target sm_70
.address_size 64
.visible .entry kernel(.param .u64 where)
{{
  .reg .u64 %rd<3>;
  .reg .u32 %r<3>;
  .reg .pred %p<2>;
  ld.param.u64 %rd1, [where];
  mov.u32 %r1, 1;
  {body}
  ret;
}}
"""


class Cuda:
    """The few calls of libcuda that are needed here."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        device = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name: str, *args: object) -> None:
        result = getattr(self._library, name)(*args)
        if result:
            raise OSError(f"{name}: CUDA error {result}")

    def launch(self, body: str) -> None:
        module, kernel, memory = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
        self.call("cuModuleLoadData", ctypes.byref(module), PTX.format(body=body).encode())
        self.call("cuModuleGetFunction", ctypes.byref(kernel), module, b"kernel")
        self.call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(4096))
        self.call("cuMemsetD32_v2", memory, 0, ctypes.c_size_t(1024))
        arguments = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(memory), ctypes.c_void_p))
        self.call("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, None, arguments, None)


def main() -> int:
    cuda = Cuda()
    kind = sys.argv[1]
    if kind == "hold":
        print("holding", flush=True)
        time.sleep(600)
    cuda.launch(KERNELS[kind])
    print("launched", flush=True)
    try:
        cuda.call("cuCtxSynchronize")
    except OSError as error:
        print(error, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
