"""Matrix multiplication (GEMM) in PTX: plain units and tensor cores. C[n][n] = A[n][K] · B[n][K]ᵀ, of bf16."""

K = 4096  # the length of the dot products, a constant so that offsets are immediate
TILE_FMA, TILE_MMA = 64, 128  # rows and columns of the product that one block computes
STEP_MMA = 32  # elements of a row that a warp reads at once


def fma() -> str:
    """By plain fused multiply-adds: a block of 16 × 16 threads, four by four of C each."""
    row = K * 2
    lines = [f"ld.global.v4.b32 {{%a{i}0, %a{i}1, %a{i}2, %a{i}3}}, [%pa+{16 * i * row}];" for i in range(4)]
    lines += [f"ld.global.v4.b32 {{%b{i}0, %b{i}1, %b{i}2, %b{i}3}}, [%pb+{16 * i * row}];" for i in range(4)]
    for pair in range(4):
        for how in ("shl.b32 %s, %s, 16;", "and.b32 %s, %s, 0xFFFF0000;"):
            for i in range(4):
                lines += [how % (f"%ua{i}", f"%a{i}{pair}"), how % (f"%ub{i}", f"%b{i}{pair}")]
                lines += [f"mov.b32 %fa{i}, %ua{i};", f"mov.b32 %fb{i}, %ub{i};"]
            lines += [f"fma.rn.f32 %c{i * 4 + j}, %fa{i}, %fb{j}, %c{i * 4 + j};" for i in range(4) for j in range(4)]
    body = "\n        ".join(lines)
    zero = "\n        ".join(f"mov.f32 %c{i}, 0f00000000;" for i in range(16))
    registers = ", ".join(f"%{side}{i}{j}" for side in "ab" for i in range(4) for j in range(4))
    unpacked = ", ".join(f"%u{side}{i}" for side in "ab" for i in range(4))
    floats = ", ".join(f"%f{side}{i}" for side in "ab" for i in range(4))
    store = []
    for i in range(4):
        store += [f"st.global.f32 [%pc+{64 * j}], %c{i * 4 + j};" for j in range(4)]
        store += ["add.u64 %pc, %pc, %rows;"]
    stored = "\n        ".join(store)
    return f"""
.version 6.4
.target sm_60
.address_size 64

.visible .entry multiply_fma(.param .u64 A, .param .u64 B, .param .u64 C, .param .u32 n)
.maxntid 256, 1, 1
{{
        .reg .b32 {registers}, {unpacked}, %tx, %ty, %bx, %by, %n, %k;
        .reg .f32 %c<16>, {floats};
        .reg .b64 %pa, %pb, %pc, %rows, %t;
        .reg .pred %p;
        mov.u32 %tx, %tid.x;
        shr.u32 %ty, %tx, 4;
        and.b32 %tx, %tx, 15;
        mov.u32 %bx, %ctaid.x;
        mov.u32 %by, %ctaid.y;
        mad.lo.u32 %ty, %by, {TILE_FMA}, %ty;
        mad.lo.u32 %tx, %bx, {TILE_FMA}, %tx;
        ld.param.u64 %pa, [A];
        mul.wide.u32 %t, %ty, {row};
        add.u64 %pa, %pa, %t;
        ld.param.u64 %pb, [B];
        mul.wide.u32 %t, %tx, {row};
        add.u64 %pb, %pb, %t;
        ld.param.u64 %pc, [C];
        ld.param.u32 %n, [n];
        mul.wide.u32 %rows, %n, 64;
        mul.wide.u32 %t, %ty, %n;
        shl.b64 %t, %t, 2;
        add.u64 %pc, %pc, %t;
        mul.wide.u32 %t, %tx, 4;
        add.u64 %pc, %pc, %t;
        {zero}
        mov.u32 %k, 0;
    next:
        {body}
        add.u64 %pa, %pa, 16;
        add.u64 %pb, %pb, 16;
        add.u32 %k, %k, 8;
        setp.lt.u32 %p, %k, {K};
    @%p bra next;
        {stored}
        ret;
}}
"""


def mma() -> str:
    """By tensor cores: a block of four warps, each 64 × 64 of C.

    `repeats` multiplies what was loaded so often: more arithmetic per byte, which is what makes a GPU hot.

    The order of a dot product's terms is free, so a lane reads 16 bytes of a row at once and takes them for the places
    that the instruction gives it in two steps, of A and B alike.
    """
    row = K * 2
    load = []
    for i in range(4):
        for half in range(2):
            names = ", ".join(f"%a{i}_{half}_{j}" for j in range(4))
            load.append(f"ld.global.v4.b32 {{{names}}}, [%pa+{(16 * i + 8 * half) * row}];")
    load += [
        f"ld.global.v4.b32 {{{', '.join(f'%b{i}_{j}' for j in range(4))}}}, [%pb+{8 * i * row}];" for i in range(8)
    ]
    multiply = []
    for step in range(2):
        first, second = 2 * step, 2 * step + 1
        for i in range(4):
            a = f"%a{i}_0_{first}, %a{i}_1_{first}, %a{i}_0_{second}, %a{i}_1_{second}"
            for j in range(8):
                c = ", ".join(f"%c{(i * 8 + j) * 4 + q}" for q in range(4))
                b = f"%b{j}_{first}, %b{j}_{second}"
                multiply.append(
                    f"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {{{c}}}, {{{a}}}, {{{b}}}, {{{c}}};"
                )
    store = []
    for i in range(4):
        for half in range(2):
            for j in range(8):
                at = (i * 8 + j) * 4 + 2 * half
                store.append(f"st.global.v2.f32 [%pc+{32 * j}], {{%c{at}, %c{at + 1}}};")
            store.append("add.u64 %pc, %pc, %rows;")
    registers = ", ".join(f"%a{i}_{half}_{j}" for i in range(4) for half in range(2) for j in range(4))
    registers += ", " + ", ".join(f"%b{i}_{j}" for i in range(8) for j in range(4))
    zero = "\n        ".join(f"mov.f32 %c{i}, 0f00000000;" for i in range(128))
    loaded, multiplied, stored = ("\n        ".join(lines) for lines in (load, multiply, store))
    return f"""
.version 7.0
.target sm_80
.address_size 64

.visible .entry multiply_mma(.param .u64 A, .param .u64 B, .param .u64 C, .param .u32 n, .param .u32 repeats)
.maxntid 128, 1, 1
{{
        .reg .b32 {registers};
        .reg .b32 %lane, %warp, %g, %q, %m, %o, %n, %k, %r, %repeats, %x;
        .reg .f32 %c<128>;
        .reg .b64 %pa, %pb, %pc, %rows, %t;
        .reg .pred %p;
        mov.u32 %x, %tid.x;
        shr.u32 %warp, %x, 5;
        and.b32 %lane, %x, 31;
        shr.u32 %g, %lane, 2;
        and.b32 %q, %lane, 3;
        mov.u32 %x, %ctaid.y;
        shr.u32 %m, %warp, 1;
        shl.b32 %m, %m, 6;
        mad.lo.u32 %m, %x, {TILE_MMA}, %m;
        mov.u32 %x, %ctaid.x;
        and.b32 %o, %warp, 1;
        shl.b32 %o, %o, 6;
        mad.lo.u32 %o, %x, {TILE_MMA}, %o;
        add.u32 %m, %m, %g;
        add.u32 %x, %o, %g;
        mul.wide.u32 %t, %m, {row};
        ld.param.u64 %pa, [A];
        add.u64 %pa, %pa, %t;
        mul.wide.u32 %t, %x, {row};
        ld.param.u64 %pb, [B];
        add.u64 %pb, %pb, %t;
        mul.wide.u32 %t, %q, 16;
        add.u64 %pa, %pa, %t;
        add.u64 %pb, %pb, %t;
        ld.param.u32 %n, [n];
        ld.param.u32 %repeats, [repeats];
        mul.wide.u32 %rows, %n, 32;
        mul.wide.u32 %t, %m, %n;
        shl.b64 %t, %t, 2;
        ld.param.u64 %pc, [C];
        add.u64 %pc, %pc, %t;
        mul.wide.u32 %t, %o, 4;
        add.u64 %pc, %pc, %t;
        mul.wide.u32 %t, %q, 8;
        add.u64 %pc, %pc, %t;
        {zero}
        mov.u32 %k, 0;
    next:
        {loaded}
        mov.u32 %r, 0;
    again:
        {multiplied}
        add.u32 %r, %r, 1;
        setp.lt.u32 %p, %r, %repeats;
    @%p bra again;
        add.u64 %pa, %pa, {STEP_MMA * 2};
        add.u64 %pb, %pb, {STEP_MMA * 2};
        add.u32 %k, %k, {STEP_MMA};
        setp.lt.u32 %p, %k, {K};
    @%p bra next;
        {stored}
        ret;
}}
"""
