"""C names from names of any kind.

Every name is a legal identifier, no C or C++ keyword and no name that headers of both languages
take, at most 63 characters; two different names never collide: the later one takes a stable hash
suffix.
"""

from __future__ import annotations

import hashlib
import re

MAX_LENGTH = 63

# Behind the keywords: macros without arguments of standard headers and, of gnu99 and gnu++, of
# compilers; types that the public header uses, which a C++ struct may not name a member after.
_KEYWORDS = frozenset(
    re.split(
        r"\s+",
        """alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t
        char32_t char8_t class co_await co_return co_yield compl concept const const_cast consteval
        constexpr constinit continue decltype default delete do double dynamic_cast else enum
        explicit export extern false float for friend goto if inline int long mutable namespace new
        noexcept not not_eq nullptr operator or or_eq private protected public register
        reinterpret_cast requires restrict return short signed sizeof static static_assert
        static_cast struct switch template this thread_local throw true try typedef typeid typename
        typeof typeof_unqual union unsigned using virtual void volatile wchar_t while xor xor_eq
        main errno NAN INFINITY NULL EOF stdin stdout stderr I complex imaginary linux unix
        int8_t uint8_t int16_t uint16_t int32_t uint32_t int64_t uint64_t size_t ptrdiff_t""",
    )
)


RESERVED_PREFIXES = frozenset(
    re.split(
        r"\s+",
        """m c all clean help install test package edit_cache rebuild_cache list_install_components
        kernels routines weights simd tool run bench aot aot_clock aot_opencl board mps startup hal
        assert complex ctype errno fenv float inttypes iso646 limits locale math setjmp signal
        stdarg stdatomic stdbool stddef stdint stdio stdlib string strings tgmath threads time
        uchar wchar wctype unistd fcntl poll pthread sched semaphore dirent memory malloc alloca
        features elf link regex search sys immintrin arm_neon sem mtx cnd""",
    )
)
"""Names that a project cannot have: CMake's own targets, libraries, its files, system headers."""


def digest(text: str | bytes, length: int = 8) -> str:
    """The first hex digits of SHA-256: equal on every machine and run."""
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    return hashlib.sha256(data).hexdigest()[:length]


def identifier(name: str, fallback: str = "x") -> str:
    """``name`` with everything that C does not allow turned into underscores.

    Names that lose characters outside ASCII keep a hash, so that they stay apart.
    """
    plain = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")
    if not plain or not plain.isascii():
        plain = fallback
    if any(ord(c) > 127 for c in name):
        plain = f"{plain}_{digest(name, 4)}"
    if plain[0].isdigit():
        plain = f"{fallback}{plain}"
    if plain in _KEYWORDS:
        plain += "_"
    return shorten(plain)


def shorten(name: str, limit: int = MAX_LENGTH) -> str:
    """At most ``limit`` characters; a cut name ends in a hash of the whole."""
    return name if len(name) <= limit else f"{name[: limit - 9]}_{digest(name)}"


class Namer:
    """Hands out identifiers, each once. Case is ignored where macros are made of the names."""

    def __init__(self, limit: int = MAX_LENGTH) -> None:
        self._limit = limit
        self._taken: set[str] = set()
        self._turns: dict[str, int] = {}

    def name(self, wanted: str, fallback: str = "x") -> str:
        base = shorten(identifier(wanted, fallback), self._limit)
        result = base
        turn = self._turns.get(wanted, 0)
        while result.lower() in self._taken:
            suffix = digest(f"{wanted}#{turn}", 6)
            result = f"{base[: self._limit - 7]}_{suffix}"
            turn += 1
        self._turns[wanted] = turn
        self._taken.add(result.lower())
        return result


def default_prefix(model_name: str) -> str:
    """The prefix of a model's public symbols: lower case, at most 24 characters, never starting
    with a digit, never a reserved name.
    """
    prefix = shorten(identifier(model_name, "model").lower(), 24)
    return f"{prefix}_model" if is_reserved(prefix) else prefix


def is_reserved(prefix: str) -> bool:
    """Whether a project of that name would not build."""
    name = prefix.lower()
    return name in RESERVED_PREFIXES or name in _KEYWORDS or name.startswith(("kernels_", "aot_"))
