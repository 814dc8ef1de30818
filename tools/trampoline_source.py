"""The call trampoline, in the language of ``trampoline_lang``: parsed, never executed. Layouts are those of ``aotgrad_runtime.call.layout``.

``vectorcall`` is what CPython calls: it tries the function's instances in order (check the arguments, allocate the results, run the kernel) and ends at the Python
fallback. Everything it keeps lies on the stack of the call, so it is re-entrant; the one shared word is an instance's cached workspace block, taken and given back by
atomic exchange. Until the kernel runs the GIL is held, so that arguments can be read as borrowed references; hidden inputs, which other code may rebind meanwhile,
are held.
"""
# ruff: noqa: F821
# mypy: ignore-errors


@export
def vectorcall(self, args, nargsf, kwnames):
    nargs = nargsf & NARGS_MASK
    if unlikely(kwnames != 0) and i64[kwnames + OBJECT.var_size] != 0:
        return fall_back(self, args, nargsf, kwnames)
    scratch = alloca(i64[self + FUNCTION.scratch])
    inst = i64[self + FUNCTION.head]
    if unlikely(inst == 0):
        inst = set_aside(self)
    while inst != 0:
        if likely(i64[inst + INSTANCE.npos] == nargs):
            result = attempt(inst, args, scratch)
            if likely(result != NEXT):
                return result
        inst = i64[inst + INSTANCE.next]
    return fall_back(self, args, nargsf, kwnames)


@noinline
def set_aside(self):
    """The instances of a suspended function, for threads that do not watch; 0 for those that do."""
    inst = i64[self + FUNCTION.aside]
    if inst != 0:
        count = i64[T.watchers]
        if count > WATCHERS_ROOM:
            return 0
        me = call(T.PyThread_get_thread_ident)
        place = T.watchers + 8 * count
        while place != T.watchers:
            if i64[place] == me:
                return 0
            place = place - 8
    return inst


@noinline
def fall_back(self, args, nargsf, kwnames):
    """The Python fallback, through its own vectorcall pointer (PyObject_Vectorcall is not exported by 3.10)."""
    function = i64[self + FUNCTION.fallback]
    if function != 0:
        kind = i64[function + OBJECT.type]
        if (i64[kind + OBJECT.type_flags] & HAVE_VECTORCALL) != 0:
            entry = i64[function + i64[kind + OBJECT.type_vectorcall_offset]]
            if entry != 0:
                return call(entry, function, args, nargsf, kwnames)
    call(T.PyErr_SetString, i64[T.PyExc_RuntimeError], T.msg_no_fallback)
    return 0


def attempt(inst, args, scratch):
    """Run one instance: the result, 0 with an exception set, or NEXT when the arguments are not its."""
    if unlikely(match_args(inst, args, scratch) == 0):
        return NEXT
    finish = i64[inst + INSTANCE.finish]
    if unlikely(finish != 0 and i8[T.restricted] != 0):
        release_held(inst, scratch)
        return NEXT
    if unlikely(allocate(inst, scratch) == 0):
        release_held(inst, scratch)
        return 0
    block = stack(CALL_SIZE)
    clear_info(block)
    i64[block + CALL.ptrs] = scratch
    i64[block + CALL.sizes] = scratch + i64[inst + INSTANCE.off_syms]
    i64[block + CALL.workspace] = 0
    i64[block + CALL.ctx] = i64[inst + INSTANCE.ctx]
    release = i64[inst + INSTANCE.release]
    if release > 1:
        release = work(inst, scratch) >= release
    if likely((release | i64[inst + INSTANCE.heavy]) == 0):
        code = call32(i64[inst + INSTANCE.kernel], block)
    else:
        code = run_heavy(inst, block, release)
    release_held(inst, scratch)
    if unlikely(code != 0):
        release_outputs(inst, scratch, i64[inst + INSTANCE.outs_end])
        return failed(inst, code, block, NEXT)
    if finish != 0:
        return finished(finish, results(inst, scratch), args, i64[inst + INSTANCE.npos])
    return results(inst, scratch)


@noinline
def finished(finish, result, args, count):
    """What ``finish(result, *args)`` makes of a call; its NotImplemented means the next instance."""
    if result == 0:
        return 0
    given = alloca(8 * (count + 2)) + 8
    i64[given] = result
    place = given
    end = given + 8 * count
    while place != end:
        place += 8
        i64[place] = i64[args]
        args += 8
    kind = i64[finish + OBJECT.type]
    made = call(i64[finish + i64[kind + OBJECT.type_vectorcall_offset]], finish, given, count + 1, 0)
    call(T.Py_DecRef, result)
    if made == T.NotImplemented:
        call(T.Py_DecRef, made)
        return NEXT
    return made


def match_args(inst, args, scratch):
    """Check every argument; fills pointers, size symbols and held references. 0 (with nothing held) when one does not fit."""
    word = i64[inst + INSTANCE.words]
    last = i64[inst + INSTANCE.words_end]
    while word != last:
        if unlikely(i64[i64[word]] != i64[word + 8]):
            return 0
        word += 16
    syms = scratch + i64[inst + INSTANCE.off_syms]
    spec = i64[inst + INSTANCE.args]
    end = i64[inst + INSTANCE.args_end]
    if unlikely(i64[inst + INSTANCE.nhidden] != 0):
        clear_held(inst, scratch)
    pointer = scratch
    while spec != end:
        if likely(i64[spec + ARG.special] == 0):
            obj = i64[args + i64[spec + ARG.index]]
        else:
            obj = resolve(spec, args, scratch + i64[inst + INSTANCE.off_held])
            if obj == 0:
                release_held(inst, scratch)
                return 0
        kind = i64[spec + ARG.kind]
        fits = 0
        if likely(i64[obj + OBJECT.type] == i64[spec + ARG.type]):
            if likely(kind == KIND_ARRAY):
                if likely(check_array(spec, obj, syms) != 0):
                    i64[pointer] = i64[obj + ARRAY.data]
                    fits = 1
            else:
                data = obj + OBJECT.payload
                fits = 1
                if kind == KIND_INT:
                    data = scratch + i64[spec + ARG.value]
                    fits = read_int(obj, data)
                i64[pointer] = data
        if unlikely(kind == KIND_IS):
            fits = obj == i64[spec + ARG.type]
            pointer -= 8
        if unlikely(fits == 0):
            release_held(inst, scratch)
            return 0
        pointer += 8
        spec += ARG_SIZE
    return 1


def check_array(spec, array, syms):
    """Rank, flags, type, byte order, dims and, for a layout that is not C order, strides."""
    nd = i64[spec + ARG.nd]
    flags = i64[spec + ARG.flags]
    if unlikely(i32[array + ARRAY.nd] != nd or (i32[array + ARRAY.flags] & flags) != flags):
        return 0
    descr = i64[array + ARRAY.descr]
    if unlikely(i32[descr + ARRAY.descr_type_num] != i64[spec + ARG.type_num] or i8[descr + ARRAY.descr_byteorder] == BIG_ENDIAN):
        return 0
    dims = i64[array + ARRAY.dims]
    want = i64[spec + ARG.dims]
    end = want + nd * 8
    while want != end:
        w = i64[want]
        size = i64[dims]
        if w >= 0:
            if unlikely(w != size):
                return 0
        else:
            # ~w is twice the symbol's number, plus one where it is bound already.
            w = ~w
            slot = syms + (w >> 1) * 8
            if (w & 1) == 0:
                i64[slot] = size
            elif unlikely(i64[slot] != size):
                return 0
        want += 8
        dims += 8
    if unlikely(i64[spec + ARG.order] != 0):
        return check_strides(spec, array, nd)
    return 1


@noinline
def check_strides(spec, array, nd):
    """Are the strides those of a dense array whose dims, from the innermost out, are ``order``? (Dims of size 1 may have any stride, unless ``exact``.)"""
    exact = i64[spec + ARG.exact]
    order = i64[spec + ARG.order]
    end = order + nd * 8
    dims = i64[array + ARRAY.dims]
    strides = i64[array + ARRAY.strides]
    step = i64[spec + ARG.itemsize]
    bad = 0
    while order != end:
        size = i64[dims + i64[order]]
        bad = bad | (((size != 1) | exact) & (i64[strides + i64[order]] != step))
        step = step * size
        order += 8
    return (bad == 0) | ((step == 0) & (exact == 0))


@noinline
def read_int(obj, place):
    """An exact int that fits 64 bits, into ``place``."""
    overflow = stack(8)
    i64[overflow] = 0
    i64[place] = call(T.PyLong_AsLongLongAndOverflow, obj, overflow)
    return i32[overflow] == 0


# Hidden inputs


@noinline
def resolve(spec, args, held):
    """A new reference to a hidden input (recorded in ``held``), or 0 with no exception set."""
    source = i64[spec + ARG.source]
    place = i64[spec + ARG.index]
    if source == SOURCE_POSITIONAL:
        obj = i64[args + place]
    elif source == SOURCE_CELL:
        obj = i64[place + OBJECT.cell_value]
    elif source == SOURCE_GLOBAL:
        obj = call(T.PyDict_GetItemWithError, place, i64[spec + ARG.key])
    else:
        obj = place
    if obj == 0:
        call(T.PyErr_Clear)
        if (i64[spec + ARG.absent] == 0) | (i64[spec + ARG.npath] != 0):
            return 0
        obj = i64[spec + ARG.type]  # what stands for a global that is not there
    call(T.Py_IncRef, obj)
    name = i64[spec + ARG.path]
    end = name + i64[spec + ARG.npath] * 8
    while name != end:
        owner = obj
        obj = call(T.PyObject_GetAttr, owner, i64[name])
        call(T.Py_DecRef, owner)
        name += 8
        if obj == 0:
            call(T.PyErr_Clear)
            if (i64[spec + ARG.absent] == 0) | (name != end):
                return 0
            obj = i64[spec + ARG.type]  # what stands for an attribute that is not there
            call(T.Py_IncRef, obj)
    if i64[spec + ARG.method] != 0:
        # The function behind a method, without making the bound method where the object has none of its own.
        owner = obj
        found = stack(8)
        i64[found] = 0
        unbound = call(T.PyObject_GetMethod, owner, i64[spec + ARG.method], found) & 0xFFFFFFFF
        call(T.Py_DecRef, owner)
        obj = i64[found]
        if (obj != 0) & (unbound == 0):
            owner = obj
            obj = call(T.PyObject_GetAttr, owner, T.name_func)
            call(T.Py_DecRef, owner)
        if obj == 0:
            call(T.PyErr_Clear)
            return 0
    if i64[spec + ARG.unwrap_type] != 0:
        # The array inside a wrapper (a Tensor): its slot is read in place.
        owner = obj
        obj = 0
        if i64[owner + OBJECT.type] == i64[spec + ARG.unwrap_type]:
            obj = i64[owner + i64[spec + ARG.unwrap_offset]]
        if obj != 0:
            call(T.Py_IncRef, obj)
        call(T.Py_DecRef, owner)
        if obj == 0:
            return 0
    i64[held + i64[spec + ARG.value]] = obj
    return obj


@noinline
def clear_held(inst, scratch):
    slot = scratch + i64[inst + INSTANCE.off_held]
    end = slot + i64[inst + INSTANCE.nhidden] * 8
    while slot != end:
        i64[slot] = 0
        slot += 8
    return 0


def release_held(inst, scratch):
    if unlikely(i64[inst + INSTANCE.nhidden] != 0):
        drop_held(inst, scratch)
    return 0


@noinline
def drop_held(inst, scratch):
    slot = scratch + i64[inst + INSTANCE.off_held]
    end = slot + i64[inst + INSTANCE.nhidden] * 8
    while slot != end:
        if i64[slot] != 0:
            call(T.Py_DecRef, i64[slot])
        slot += 8
    return 0


# Results


def allocate(inst, scratch):
    """New arrays for the results, their pointers after the arguments'. 0 with an exception set and nothing kept."""
    out = i64[inst + INSTANCE.outs]
    end = i64[inst + INSTANCE.outs_end]
    obj = scratch + i64[inst + INSTANCE.off_objs]
    pointer = scratch + i64[inst + INSTANCE.off_outs]
    if unlikely(i64[inst + INSTANCE.shapes] != 0):
        call(i64[inst + INSTANCE.shapes], scratch + i64[inst + INSTANCE.off_syms], scratch + i64[inst + INSTANCE.off_dims])
    while out != end:
        if i64[out + OUT.scalar] != 0:
            i64[pointer] = scratch + i64[out + OUT.value]
        else:
            dims = i64[out + OUT.dims]
            if i64[out + OUT.dynamic] != 0:
                dims = out_dims(inst, out, scratch)
            strides = 0
            if unlikely(i64[out + OUT.order] != 0):
                strides = out_strides(out, dims, scratch + i64[inst + INSTANCE.off_strides])
            descr = i64[out + OUT.descr]
            call(T.Py_IncRef, descr)
            array = call(T.PyArray_NewFromDescr, T.ndarray, descr, i64[out + OUT.nd], dims, strides, 0, 0, 0)
            if unlikely(array == 0):
                release_outputs(inst, scratch, out)
                return 0
            i64[obj] = array
            i64[pointer] = i64[array + ARRAY.data]
        obj += 8
        pointer += 8
        out += OUT_SIZE
    return 1


def out_dims(inst, out, scratch):
    """The dims of a result: from the size symbols, or already written by the shapes function."""
    dims = scratch + i64[inst + INSTANCE.off_dims] + i64[out + OUT.dims_offset]
    if i64[inst + INSTANCE.shapes] == 0:
        syms = scratch + i64[inst + INSTANCE.off_syms]
        want = i64[out + OUT.dims]
        end = want + i64[out + OUT.nd] * 8
        place = dims
        while want != end:
            w = i64[want]
            if w < 0:
                w = i64[syms + (~w) * 8]
            i64[place] = w
            want += 8
            place += 8
    return dims


@noinline
def out_strides(out, dims, strides):
    order = i64[out + OUT.order]
    end = order + i64[out + OUT.nd] * 8
    step = i64[out + OUT.itemsize]
    while order != end:
        i64[strides + i64[order]] = step
        size = i64[dims + i64[order]]
        if size > 1:
            step = step * size
        order += 8
    return strides


@noinline
def release_outputs(inst, scratch, end):
    out = i64[inst + INSTANCE.outs]
    obj = scratch + i64[inst + INSTANCE.off_objs]
    while out != end:
        if i64[out + OUT.scalar] == 0:
            call(T.Py_DecRef, i64[obj])
        obj += 8
        out += OUT_SIZE
    return 0


def results(inst, scratch):
    """The finished results as one object."""
    obj = scratch + i64[inst + INSTANCE.off_objs]
    out = i64[inst + INSTANCE.outs]
    nouts = i64[inst + INSTANCE.nouts]
    if likely(nouts == 1):
        if i64[out + OUT.scalar] != 0:
            return call(T.PyArray_Scalar, scratch + i64[out + OUT.value], i64[out + OUT.descr], 0)
        return i64[obj]
    return results_tuple(inst, scratch, out, obj, nouts)


@noinline
def results_tuple(inst, scratch, out, obj, nouts):
    if nouts == 0:
        call(T.Py_IncRef, T.None_)
        return T.None_
    tuple = call(T.PyTuple_New, nouts)
    if tuple == 0:
        release_outputs(inst, scratch, i64[inst + INSTANCE.outs_end])
        return 0
    missing = 0
    k = 0
    while k != nouts:
        item = 0
        if i64[out + OUT.scalar] == 0:
            item = i64[obj]
        elif missing == 0:
            item = call(T.PyArray_Scalar, scratch + i64[out + OUT.value], i64[out + OUT.descr], 0)
            missing = item == 0
        if item != 0:
            call(T.PyTuple_SetItem, tuple, k, item)
        obj += 8
        out += OUT_SIZE
        k += 1
    if missing != 0:
        call(T.Py_DecRef, tuple)
        return 0
    return tuple


def clear_info(block):
    i64[block + CALL.info0] = 0
    i64[block + CALL.info1] = 0
    i64[block + CALL.info2] = 0
    i64[block + CALL.info3] = 0
    return 0


@noinline
def failed(inst, code, block, retry):
    """A kernel's non-zero code: the exception already set, or what ``on_error(code, info)`` raises or returns; its NotImplemented means ``retry``."""
    if call(T.PyErr_Occurred) != 0:
        return 0
    arguments = call(T.PyTuple_New, 2)
    if arguments == 0:
        return 0
    info = call(T.PyTuple_New, 4)
    number = call(T.PyLong_FromLongLong, code)
    if info == 0 or number == 0:
        call(T.Py_DecRef, arguments)
        return 0
    call(T.PyTuple_SetItem, arguments, 0, number)
    call(T.PyTuple_SetItem, arguments, 1, info)
    k = 0
    while k != 4:
        number = call(T.PyLong_FromLongLong, i64[block + CALL.info0 + k * 8])
        if number == 0:
            call(T.Py_DecRef, arguments)
            return 0
        call(T.PyTuple_SetItem, info, k, number)
        k += 1
    result = call(T.PyObject_CallObject, i64[inst + INSTANCE.on_error], arguments)
    call(T.Py_DecRef, arguments)
    if result == T.NotImplemented:
        call(T.Py_DecRef, result)
        return retry
    return result


# Work, workspace, GIL, interrupts


@noinline
def work(inst, scratch):
    """Bytes of all array arguments and results. An empty dim counts as one of size 1: beside it a size can be anything, and loops run over that."""
    total = 0
    syms = scratch + i64[inst + INSTANCE.off_syms]
    spec = i64[inst + INSTANCE.args]
    end = i64[inst + INSTANCE.args_end]
    while spec != end:
        if i64[spec + ARG.kind] == KIND_ARRAY:
            want = i64[spec + ARG.dims]
            last = want + i64[spec + ARG.nd] * 8
            size = i64[spec + ARG.itemsize]
            while want != last:
                w = i64[want]
                if w < 0:
                    w = i64[syms + ((~w) >> 1) * 8]
                size = size * (w | (w == 0))
                want += 8
            total += size
        spec += ARG_SIZE
    out = i64[inst + INSTANCE.outs]
    end = i64[inst + INSTANCE.outs_end]
    while out != end:
        want = i64[out + OUT.dims]
        if i64[out + OUT.dynamic] != 0:
            want = scratch + i64[inst + INSTANCE.off_dims] + i64[out + OUT.dims_offset]
        last = want + i64[out + OUT.nd] * 8
        size = i64[out + OUT.itemsize]
        while want != last:
            w = i64[want]
            size = size * (w | (w == 0))
            want += 8
        total += size
        out += OUT_SIZE
    return total


@noinline
def run_heavy(inst, block, release):
    """The kernel with what only larger calls need: a workspace, the GIL released, interrupts looked for."""
    need = i64[inst + INSTANCE.workspace_bytes]
    if i64[inst + INSTANCE.workspace] != 0:
        need = call(i64[inst + INSTANCE.workspace], i64[block + CALL.sizes])
    heap = 0
    if need > 0:
        if need <= ALLOCA_LIMIT:
            i64[block + CALL.workspace] = (alloca(need + 64) + 63) & -64
        else:
            heap = take_block(inst, need)
            if heap == 0:
                call(T.PyErr_NoMemory)
                return NOMEM
            i64[block + CALL.workspace] = heap
    if (release | i64[inst + INSTANCE.poll]) == 0:
        code = call32(i64[inst + INSTANCE.kernel], block)
    else:
        code = run_polled(inst, block, release)
    if heap != 0:
        give_block(inst, heap)
    return code


@noinline
def run_polled(inst, block, release):
    ctx = stack(CTX_SIZE)
    start_ctx(ctx, i64[inst + INSTANCE.ctx])
    i64[ctx + CTX.may_release] = i64[inst + INSTANCE.may_release]
    i64[block + CALL.ctx] = ctx
    if release != 0:
        i64[ctx + CTX.tstate] = call(T.PyEval_SaveThread)
    code = call32(i64[inst + INSTANCE.kernel], block)
    if i64[ctx + CTX.tstate] != 0:
        call(T.PyEval_RestoreThread, i64[ctx + CTX.tstate])
    if i64[ctx + CTX.stop] != 0:
        # An interrupt is never lost, even when the kernel finished before it looked.
        return INTERRUPTED
    return code


def start_ctx(ctx, given):
    i64[ctx + CTX.poll] = 0
    i64[ctx + CTX.pool] = 0
    i64[ctx + CTX.hook] = 0
    i64[ctx + CTX.hook_state] = 0
    i64[ctx + CTX.tape] = 0
    if given != 0:
        i64[ctx + CTX.poll] = i64[given + CTX.poll]
        i64[ctx + CTX.pool] = i64[given + CTX.pool]
        i64[ctx + CTX.hook] = i64[given + CTX.hook]
        i64[ctx + CTX.hook_state] = i64[given + CTX.hook_state]
        i64[ctx + CTX.tape] = i64[given + CTX.tape]
    if i64[ctx + CTX.poll] == 0:
        i64[ctx + CTX.poll] = address(poll)
    i64[ctx + CTX.stop] = 0
    i64[ctx + CTX.thread] = call(T.PyThread_get_thread_ident)
    i64[ctx + CTX.tstate] = 0
    i64[ctx + CTX.deadline] = clock(ctx) + POLL_NS
    return 0


def clock(ctx):
    """Nanoseconds of the coarse monotonic clock (a few ns to read)."""
    call(T.clock_gettime, T.clock_id, ctx + CTX.clock_sec)
    return i64[ctx + CTX.clock_sec] * 1000000000 + i64[ctx + CTX.clock_nsec]


@export
def poll(ctx):
    """ag_ctx.poll: non-zero when the kernel must stop. Helper threads only read the flag; the calling thread looks at the clock."""
    if unlikely(i64[ctx + CTX.stop] != 0):
        return 1
    if call(T.PyThread_get_thread_ident) != i64[ctx + CTX.thread]:
        return 0
    now = clock(ctx)
    if likely(now < i64[ctx + CTX.deadline]):
        return 0
    return poll_python(ctx, now)


@noinline
def poll_python(ctx, now):
    """Let Python's signal handlers run (main thread), and leave the GIL to others from now on."""
    tstate = i64[ctx + CTX.tstate]
    is_main = i64[T.main_thread] == i64[ctx + CTX.thread]
    stop = 0
    if is_main or tstate == 0:
        if is_main:
            if tstate != 0:
                call(T.PyEval_RestoreThread, tstate)
            stop = call32(T.PyErr_CheckSignals) != 0
            if tstate != 0 or i64[ctx + CTX.may_release] != 0:
                i64[ctx + CTX.tstate] = call(T.PyEval_SaveThread)
        elif i64[ctx + CTX.may_release] != 0:
            i64[ctx + CTX.tstate] = call(T.PyEval_SaveThread)
    if stop != 0:
        i64[ctx + CTX.stop] = 1
    # Where the GIL is contended, taking it costs up to 5 ms: spend at most a sixteenth of the time on it.
    after = clock(ctx)
    pause = (after - now) * 16
    if pause < POLL_NS:
        pause = POLL_NS
    i64[ctx + CTX.deadline] = after + pause
    return stop


def take_block(inst, need):
    """A 64-byte aligned block of at least ``need`` bytes: the instance's cached one, or a new one. 0 when there is no memory."""
    block = xchg(inst + INSTANCE.block, 0)
    if block != 0:
        if i64[block - 8] >= need:
            return block
        call(T.PyMem_RawFree, i64[block - 16])
    raw = call(T.PyMem_RawMalloc, need + BLOCK_HEADER + 64)
    if raw == 0:
        return 0
    block = (raw + BLOCK_HEADER + 63) & -64
    i64[block - 8] = need
    i64[block - 16] = raw
    return block


def give_block(inst, block):
    old = xchg(inst + INSTANCE.block, block)
    if old != 0:
        call(T.PyMem_RawFree, i64[old - 16])
    return 0


# Prebound calls


@export
def prebound(self, args, nargsf, kwnames):
    if unlikely((nargsf & NARGS_MASK) != 0 or kwnames != 0):
        call(T.PyErr_SetString, i64[T.PyExc_TypeError], T.msg_prebound)
        return 0
    inst = i64[self + FUNCTION.head]
    if unlikely(inst == 0):
        call(T.PyErr_SetString, i64[T.PyExc_RuntimeError], T.msg_no_fallback)
        return 0
    block = stack(CALL_SIZE)
    clear_info(block)
    i64[block + CALL.ptrs] = i64[self + FUNCTION.ptrs]
    i64[block + CALL.sizes] = i64[self + FUNCTION.syms]
    i64[block + CALL.workspace] = 0
    i64[block + CALL.ctx] = i64[inst + INSTANCE.ctx]
    release = i64[inst + INSTANCE.release]
    if likely((release | i64[inst + INSTANCE.heavy]) == 0):
        code = call32(i64[inst + INSTANCE.kernel], block)
    else:
        code = run_heavy(inst, block, release)
    if unlikely(code != 0):
        result = failed(inst, code, block, NEXT)
        if result == NEXT:
            call(T.PyErr_SetString, i64[T.PyExc_RuntimeError], T.msg_guard)
            return 0
        return result
    call(T.Py_IncRef, T.None_)
    return T.None_


# Slots of the callable's type


@export
def descr_get(self, obj, kind):
    if obj == 0 or obj == T.None_:
        call(T.Py_IncRef, self)
        return self
    return call(T.PyMethod_New, self, obj)


@export
def traverse(self, visit, arg):
    result = visit_one(i64[self + OBJECT.type], visit, arg)
    if result == 0:
        result = visit_one(i64[self + FUNCTION.dict], visit, arg)
    if result == 0:
        result = visit_one(i64[self + FUNCTION.fallback], visit, arg)
    if result == 0:
        result = visit_one(i64[self + FUNCTION.state], visit, arg)
    return result


def visit_one(obj, visit, arg):
    if obj == 0:
        return 0
    return call32(visit, obj, arg)


@export
def clear(self):
    i64[self + FUNCTION.head] = 0
    i64[self + FUNCTION.aside] = 0
    clear_one(self + FUNCTION.dict)
    clear_one(self + FUNCTION.fallback)
    clear_one(self + FUNCTION.state)
    return 0


@noinline
def clear_one(place):
    obj = i64[place]
    i64[place] = 0
    if obj != 0:
        call(T.Py_DecRef, obj)
    return 0


@export
def dealloc(self):
    kind = i64[self + OBJECT.type]
    call(T.PyObject_GC_UnTrack, self)
    if i64[self + FUNCTION.weaklist] != 0:
        call(T.PyObject_ClearWeakRefs, self)
    clear(self)
    call(T.PyObject_GC_Del, self)
    call(T.Py_DecRef, kind)
    return 0
