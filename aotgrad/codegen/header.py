"""Text that goes with a built library: the C header, the pkg-config file, the CMake configuration."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence

from aotgrad_runtime.errors import AotgradValueError
from aotgrad_runtime.library import ERRORS
from aotgrad_runtime.pool_layout import MOST, SIZE

from ..ir import dims
from ..ir.dims import DimLike
from .cabi import CFunction, Param

__all__ = ["C_TYPES", "c_name", "cmake", "header", "pkg_config", "unique_names"]

C_TYPES = {"float64": "double", "float32": "float", "int64": "int64_t", "int32": "int32_t", "int16": "int16_t", "int8": "int8_t", "uint8": "uint8_t", "bool": "uint8_t"}
_KEYWORDS = frozenset((
    "alignas", "alignof", "and", "and_eq", "asm", "atomic_cancel", "auto", "bitand", "bitor", "bool", "break", "case", "catch", "char", "char8_t", "char16_t",
    "char32_t", "class", "compl", "concept", "const", "consteval", "constexpr", "constinit", "const_cast", "continue", "co_await", "co_return", "co_yield",
    "decltype", "default", "delete", "do", "double", "dynamic_cast", "else", "enum", "explicit", "export", "extern", "false", "float", "for", "friend", "goto",
    "if", "inline", "int", "long", "mutable", "namespace", "new", "noexcept", "not", "not_eq", "nullptr", "operator", "or", "or_eq", "private", "protected",
    "public", "register", "reinterpret_cast", "requires", "restrict", "return", "short", "signed", "sizeof", "static", "static_assert", "static_cast", "struct",
    "switch", "template", "this", "thread_local", "throw", "true", "try", "typedef", "typeid", "typename", "union", "unsigned", "using", "virtual", "void",
    "volatile", "wchar_t", "while", "xor", "xor_eq", "typeof",
))
_RESERVED = _KEYWORDS | {"main", "NULL", "int8_t", "int16_t", "int32_t", "int64_t", "uint8_t", "uint16_t", "uint32_t", "uint64_t", "unix", "linux", "errno",
                          "assert", "stdin", "stdout", "stderr", "EOF", "I", "complex", "offsetof"}
_MATH = """
acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp2 expm1 fabs fdim floor fma fmax fmin fmod frexp hypot ilogb ldexp
lgamma llrint llround log log10 log1p log2 logb lrint lround modf nan nearbyint nextafter nexttoward pow remainder remquo rint round scalbln scalbn
sin sinh sqrt tan tanh tgamma trunc
"""
_LIBRARY = """
abort abs access acct alarm alloca asctime atexit atof atoi atol atoll bcmp bcopy bind brk bsearch bzero calloc chdir chmod chown clearerr clock close
closedir connect creat ctime daemon difftime div drem dup dup2 encrypt exec execl execle execlp execv execve execvp exit fclose fcntl fdopen feof
ferror fflush ffs fgetc fgetpos fgets fileno finite fopen fork fprintf fputc fputs fread free freopen fscanf fseek fsetpos fstat ftell fwrite gamma
getc getchar getcwd getenv getopt getpid gets gettimeofday gmtime index ioctl isalnum isalpha isatty isblank iscntrl isdigit isgraph isinf islower
isnan isprint ispunct isspace isupper isxdigit j0 j1 jn kill labs ldiv link listen llabs lldiv localtime longjmp lseek malloc mblen mbtowc memchr
memcmp memcpy memmove memset mkdir mktime mmap munmap nanosleep nice open opendir pause perror pipe poll printf putc putchar putenv puts qsort raise
rand random read readdir readlink realloc recv remove rename rewind rindex rmdir sbrk scalb scanf select send setbuf setenv setjmp setvbuf shutdown
signal significand sincos sleep snprintf socket sprintf srand srandom sscanf stat stime strcat strchr strcmp strcoll strcpy strcspn strdup strerror
strftime strlen strncat strncmp strncpy strpbrk strrchr strspn strstr strtod strtof strtok strtol strtoll strtoul strtoull strxfrm swab symlink sync
syscall sysconf system tell time times tmpfile tmpnam tolower toupper truncate umask uname ungetc unlink usleep vfork vfprintf vprintf vsprintf wait
waitpid wcslen write y0 y1 yn
"""
_TAKEN = frozenset((*_LIBRARY.split(), *(f"{n}{suffix}" for n in _MATH.split() for suffix in ("", "f", "l"))))


def c_name(name: str, what: str) -> str:
    """``name`` if it can name a function in C and C++. Raises ``AotgradValueError`` that calls it ``what``."""
    if not re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII) or name in _RESERVED or "__" in name:
        raise AotgradValueError(f"{what} {name!r} cannot name a C function; use letters, digits and single underscores, a letter first, and no keyword of C or C++")
    if name in _TAKEN:
        raise AotgradValueError(f"{what} {name!r} is a function of the C library, which other code would then call instead; "
                                 f"give another name, such as name='my_{name}'")
    return name


def unique_names(wanted: Iterable[str], taken: Iterable[str] = ()) -> list[str]:
    """C parameter names: keywords and names that occur before get a trailing underscore."""
    seen = {*_RESERVED, "workspace", *taken}
    out = []
    for w in wanted:
        name = re.sub(r"\W", "_", w, flags=re.ASCII)
        name = name if name[:1].isalpha() else f"p{name}"
        while name in seen:
            name += "_"
        seen.add(name)
        out.append(name)
    return out


def _shape(p: Param, sizes: dict[str, DimLike]) -> str:
    if not p.type.shape:
        return f"one number, passed as &{p.name}"
    text = "[" + ", ".join(dims.to_text(dims.substitute(d, sizes)) for d in p.type.shape) + "]"
    if p.type.layout is None:
        return f"{text}, row-major" if len(p.type.shape) > 1 else text
    return f"{text}, in memory with the dims in the order {list(p.type.order)}, outermost first"


def _comment(text: str, indent: str = " * ") -> list[str]:
    lines: list[str] = []
    for paragraph in text.replace("*/", "* /").replace("/*", "/ *").splitlines():
        lines += textwrap.wrap(paragraph, 100, subsequent_indent="    " if paragraph.startswith(" ") else "") or [""]
    return [f"{indent}{line}".rstrip() for line in lines]


def _parameters(f: CFunction, pool: str) -> list[str]:
    ins = [f"const {C_TYPES[p.type.dtype.name]} *{p.name}" for p in f.inputs]
    outs = [f"{C_TYPES[p.type.dtype.name]} *{p.name}" for p in f.outputs]
    return [*ins, *(f"int64_t {n}" for n in f.size_names), *outs, "void *workspace", *([f"{pool} *{_pool_name(f)}"] if pool else [])]


def _pool_name(f: CFunction) -> str:
    return unique_names(["pool"], [*(p.name for p in (*f.inputs, *f.outputs)), *f.size_names])[0]


def _function(f: CFunction, name: str, pool: str) -> list[str]:
    sizes: dict[str, DimLike] = {s: dims.symbol(n) for s, n in zip(f.symbols, f.size_names)}
    lines = ["/*", *_comment(f.doc or f"{f.name}."), " *"]
    width = max(len(p.name) for p in (*f.inputs, *f.outputs))
    for title, arrays in (("Inputs", f.inputs), ("Outputs (NULL: not wanted)", f.outputs)):
        lines.append(f" * {title}:")
        lines += [f" *   {p.name:<{width}}  {C_TYPES[p.type.dtype.name]} {_shape(p, sizes)}{'. ' + p.doc if p.doc else ''}" for p in arrays]
    if f.symbols:
        lines.append(f" * Sizes: {', '.join(f.size_names)}, each at least 0.")
    lines += [f" * {g.why[:1].upper()}{g.why[1:]}, or the call returns {name.upper()}_ERROR_SIZES." for g in f.guards]
    passed = [[p.name if p.type.shape else f"&{p.name}" for p in side] for side in (f.inputs, f.outputs)]
    call = ", ".join([*passed[0], *f.size_names, *passed[1], "workspace", *(["&pool"] if pool else [])])
    lines += [
        " *", " * Usage:", f" *   void *workspace = malloc((size_t){f.name}_workspace({', '.join(f.size_names)}));",
        f" *   int32_t code = {f.name}({call});", f" *   if (code) fprintf(stderr, \"%s\\n\", {name}_error(code));", " */",
    ]
    params = _parameters(f, pool)
    start = f"int32_t {f.name}("
    lines.append(textwrap.fill(start + ", ".join(params) + ");", 140, subsequent_indent=" " * len(start), break_long_words=False))
    given = ", ".join(f"int64_t {n}" for n in f.size_names) or "void"
    return [*lines, f"int64_t {f.name}_workspace({given});", ""]


def _pool(name: str, threads: int) -> list[str]:
    """The pool of threads that callers of a library built with threads may make."""
    return [
        "/*", " * A pool of threads. It is the caller's: as many as wanted, anywhere that stays until NAME_pool_free. Passing NULL instead means one",
        f" * thread; results are the same bits for every number of threads. At most {threads} share a call; they start when they are first needed and",
        " * sleep when they are not.",
        " * One call at a time uses a pool: others that come meanwhile run in their own thread. A child of fork starts threads of its own. Where the system gives",
        " * no threads, calls do without. pthread_create, pthread_join and syscall are the host program's (before glibc 2.34: link it with -pthread).",
        " *", " * Usage:", f" *   {name}_pool pool;",
        f" *   {name}_pool_init(&pool, 4);         up to 4 threads (at most {MOST}), the caller's included; gives their number",
        " *   ...                              calls with &pool", f" *   {name}_pool_free(&pool);            ends the threads; before the library is unloaded", " */",
        f"typedef struct {{ uint64_t opaque[{SIZE // 8}]; }} {name}_pool;", f"int32_t {name}_pool_init({name}_pool *pool, int32_t threads);",
        f"void {name}_pool_free({name}_pool *pool);", "",
    ]


def header(name: str, functions: Sequence[CFunction], version: str, target: str, threads: int = 1, flush: bool = False) -> str:
    """The header of library ``name``, for C99 and C++."""
    prefix, guard = name.upper(), f"{name.upper()}_H"
    lines = [
        f"/* {name}.h: made by aotgrad {version} for {target}. C99 and C++.", " *",
        " * Arrays are passed by pointer to their first element, dense, with the natural alignment of their type; single numbers by pointer too;",
        " * uint8_t that stands for bool is 0 or 1. Inputs may share memory with each other; an output may share memory with nothing.",
        " *",
        " * Functions need no library, allocate nothing, keep no state and may run in any number of threads, each with a workspace of its own:",
        " * NAME_workspace(sizes) bytes, of any alignment, reusable. It may be NULL where that is 0, and where every output is given and the function",
        " * needs none. They return 0 or an error code, after which outputs hold no meaning.",
        *([" * Subnormal numbers count as zeros during a call; the caller's floating-point mode is restored at every return."] if flush else []), " */",
        f"#ifndef {guard}", f"#define {guard}", "", "#include <stdint.h>", "", "#ifdef __cplusplus", 'extern "C" {', "#endif", "",
        "enum {", *(f"  {prefix}_{label} = {code},{' ' * (18 - len(label))}/* {meaning} */" for code, label, meaning in ERRORS), "};", "",
        "/* What an error code means. */", f"static inline const char *{name}_error(int32_t code) {{", "  switch (code) {",
        *(f'    case {prefix}_{label}: return "{meaning}";' for _, label, meaning in ERRORS), '    default: return "unknown error";', "  }", "}", "",
    ]
    lines += _pool(name, threads) if threads > 1 else []
    for f in functions:
        lines += _function(f, name, f"{name}_pool" if threads > 1 else "")
    return "\n".join([*lines, "#ifdef __cplusplus", "}", "#endif", "", f"#endif /* {guard} */", ""])


def pkg_config(name: str, version: str, doc: str) -> str:
    """``NAME.pc``: finds header and library beside itself, wherever the folder is moved."""
    paragraph = " ".join(doc.strip().partition("\n\n")[0].split())
    first = re.sub(r":\w+:(?=`)|[`*]+", "", re.split(r"(?<=[.!?])\s", paragraph, maxsplit=1)[0])  # no markup: a field of one line
    return "\n".join([
        "libdir=${pcfiledir}", "includedir=${pcfiledir}", "", f"Name: {name}", f"Description: {first or name + ', built by aotgrad'}", f"Version: {version}",
        "Cflags: -I${includedir}", f"Libs: -L${{libdir}} -l{name}", "",
    ])


def cmake(name: str, shared: bool, static: bool) -> str:
    """``NAMEConfig.cmake``: ``find_package(NAME CONFIG)`` gives the targets ``NAME::NAME`` and ``NAME::NAME_static`` where the files were built."""
    out = [f"# find_package({name} CONFIG PATHS <this folder>), then link {name}::{name}{f' or {name}::{name}_static' if shared and static else ''}."]
    kinds = [k for k, on in (("SHARED", shared), ("STATIC", static)) if on]
    for kind in kinds:
        target = f"{name}::{name}" if kind == kinds[0] else f"{name}::{name}_static"
        file = f"lib{name}.{'so' if kind == 'SHARED' else 'a'}"
        out += [
            f"if(NOT TARGET {target})", f"  add_library({target} {kind} IMPORTED)", f"  set_target_properties({target} PROPERTIES",
            f'    IMPORTED_LOCATION "${{CMAKE_CURRENT_LIST_DIR}}/{file}"', *([f'    IMPORTED_SONAME "{file}"'] if kind == "SHARED" else []),
            '    INTERFACE_INCLUDE_DIRECTORIES "${CMAKE_CURRENT_LIST_DIR}")', "endif()",
        ]
    return "\n".join([*out, ""])
