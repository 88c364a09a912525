"""Kernels in PTX: the driver compiles them for whatever GPU there is, so a node needs no CUDA toolkit and no torch.

Words are 64 bits. A `found` buffer holds three: how many words differ, the lowest address of one, all bits that differ.
"""

# Patterns of `fill` and `verify`; the mask is laid over each, so that its inverse is the same pattern with ~0.
WALKING, ADDRESS, RANDOM, SOLID = range(4)

_MIX = """
        mul.lo.u64 %z, %z, 0x9E3779B97F4A7C15;
        add.u64    %z, %z, %seed;
        shr.u64    %t, %z, 30;
        xor.b64    %z, %z, %t;
        mul.lo.u64 %z, %z, 0xBF58476D1CE4E5B9;
        shr.u64    %t, %z, 27;
        xor.b64    %z, %z, %t;
        mul.lo.u64 %z, %z, 0x94D049BB133111EB;
        shr.u64    %t, %z, 31;
        xor.b64    %z, %z, %t;"""

# The loop of every kernel over words: thread i takes the words i, i + all threads, …
_BEGIN = """
        .reg .u32 %x, %y, %w;
        .reg .b32 %mode, %shift;
        .reg .b64 %base, %words, %seed, %mask, %found, %index, %stride, %address, %word, %there, %bits, %z, %t;
        .reg .pred %p, %q;
        ld.param.u64 %base, [base];
        ld.param.u64 %words, [words];
        mov.u32 %x, %ctaid.x;
        mov.u32 %y, %ntid.x;
        mov.u32 %w, %tid.x;
        mul.wide.u32 %index, %x, %y;
        cvt.u64.u32 %t, %w;
        add.u64 %index, %index, %t;
        mov.u32 %x, %nctaid.x;
        mul.wide.u32 %stride, %x, %y;"""
_HEAD = """
    next:
        setp.ge.u64 %p, %index, %words;
    @%p bra done;
        shl.b64 %address, %index, 3;
        add.u64 %address, %address, %base;"""
_TAIL = """
        add.u64 %index, %index, %stride;
        bra next;
    done:
        ret;"""
_TELL = """
        setp.eq.b64 %q, %word, %there;
    @%q bra same;
        xor.b64 %bits, %word, %there;
        red.global.add.u64 [%found], 1;
        red.global.min.u64 [%found+8], %address;
        red.global.or.b64 [%found+16], %bits;
    same:"""
_PATTERN = f"""
        setp.eq.u32 %q, %mode, {WALKING};
    @%q bra walking;
        setp.eq.u32 %q, %mode, {ADDRESS};
    @%q bra address;
        setp.eq.u32 %q, %mode, {RANDOM};
    @%q bra random;
        mov.b64 %word, %seed;
        bra made;
    walking:
        add.u64 %z, %index, %seed;
        cvt.u32.u64 %shift, %z;
        and.b32 %shift, %shift, 63;
        mov.u64 %z, 1;
        shl.b64 %word, %z, %shift;
        bra made;
    address:
        mov.b64 %word, %address;
        bra made;
    random:
        add.u64 %z, %index, 1;{_MIX}
        mov.b64 %word, %z;
    made:
        xor.b64 %word, %word, %mask;"""
_PATTERN_PARAMS = """
        ld.param.u64 %seed, [seed];
        ld.param.u64 %mask, [mask];
        ld.param.u32 %mode, [mode];"""

MEMORY = f"""
.version 6.4
.target sm_60
.address_size 64

.visible .entry fill(.param .u64 base, .param .u64 words, .param .u64 seed, .param .u64 mask, .param .u32 mode)
{{{_BEGIN}{_PATTERN_PARAMS}{_HEAD}{_PATTERN}
        st.global.cg.b64 [%address], %word;{_TAIL}
}}

.visible .entry verify(.param .u64 base, .param .u64 words, .param .u64 seed, .param .u64 mask, .param .u32 mode,
                       .param .u64 found)
{{{_BEGIN}{_PATTERN_PARAMS}
        ld.param.u64 %found, [found];{_HEAD}{_PATTERN}
        ld.global.cg.b64 %there, [%address];{_TELL}{_TAIL}
}}

.visible .entry compare(.param .u64 base, .param .u64 words, .param .u64 other, .param .u64 found)
{{{_BEGIN}
        ld.param.u64 %seed, [other];
        ld.param.u64 %found, [found];{_HEAD}
        ld.global.cg.b64 %there, [%address];
        shl.b64 %t, %index, 3;
        add.u64 %t, %t, %seed;
        ld.global.cg.b64 %word, [%t];{_TELL}{_TAIL}
}}
"""

# Four bf16 in a word. exact: whole numbers from -8 to 7, whose products and sums a float holds exactly, so that every
# way of multiplying must give the same bits. Otherwise ±0.5 … ±2 with all mantissas, which makes the units work hard.
OPERANDS = (
    f"""
.version 6.4
.target sm_60
.address_size 64

.visible .entry operands(.param .u64 base, .param .u64 words, .param .u64 seed, .param .u32 exact)
{{{_BEGIN}
        .reg .b32 %exact, %lo, %hi, %one, %two;
        .reg .f32 %f;
        ld.param.u64 %seed, [seed];
        ld.param.u32 %exact, [exact];{_HEAD}
        add.u64 %z, %index, 1;{_MIX}
        mov.b64 {{%lo, %hi}}, %z;
        setp.ne.u32 %q, %exact, 0;
    @%q bra whole;
        and.b32 %lo, %lo, 0x80FF80FF;
        or.b32 %lo, %lo, 0x3F003F00;
        and.b32 %hi, %hi, 0x80FF80FF;
        or.b32 %hi, %hi, 0x3F003F00;
        bra store;
    whole:"""
    + "".join(
        f"""
        bfe.s32 %one, {half}, 0, 4;
        cvt.rn.f32.s32 %f, %one;
        mov.b32 %one, %f;
        bfe.s32 %two, {half}, 8, 4;
        cvt.rn.f32.s32 %f, %two;
        mov.b32 %two, %f;
        prmt.b32 {half}, %one, %two, 0x7632;"""
        for half in ("%lo", "%hi")
    )
    + f"""
    store:
        mov.b64 %word, {{%lo, %hi}};
        st.global.cg.b64 [%address], %word;{_TAIL}
}}
"""
)
