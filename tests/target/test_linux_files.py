"""Readers of /proc and /sys."""

from __future__ import annotations

from aotgen.target.linux_files import (
    Cache,
    byte_count,
    cpu_list,
    cpuinfo_blocks,
    data_caches,
    memory_bytes,
)


def test_cpu_list() -> None:
    assert cpu_list("0-3,5") == [0, 1, 2, 3, 5]
    assert cpu_list("") == []
    assert len(cpu_list("0-99999999999")) <= 8192


def test_byte_count() -> None:
    texts = ("48K", "1M\n", "512", "", "big")
    assert [byte_count(text) for text in texts] == [49152, 1 << 20, 512, 0, 0]


def test_cpuinfo_blocks() -> None:
    text = "Processor : ARMv7\nprocessor : 0\nBogoMIPS : 1\n\nprocessor : 1\nFeatures : neon\n"
    assert cpuinfo_blocks(text) == [
        {"processor": "0", "BogoMIPS": "1"},
        {"processor": "1", "Features": "neon"},
    ]


def test_memory_bytes() -> None:
    text = "MemTotal:   1024 kB\nMemFree: 2 kB\nHugePages_Total:       0\n"
    assert memory_bytes(text) == {"MemTotal": 1 << 20, "MemFree": 2048}


def test_data_caches() -> None:
    """Instruction caches are passed over; a size that is no number is not told."""
    folder = "/sys/devices/system/cpu/cpu4/cache"
    names = ("level", "type", "size", "ways_of_associativity")
    entries = (
        ("1", "Data", "32K", "4"),
        ("1", "Instruction", "48K", "3"),
        ("2", "Unified", "?", "x"),
    )
    files = {
        f"{folder}/index{index}/{name}": f"{text}\n"
        for index, entry in enumerate(entries)
        for name, text in zip(names, entry, strict=True)
    }
    found = data_caches(lambda path: files.get(path, ""), cpu=4)
    assert found == {1: Cache(32 << 10, 4), 2: Cache()}
    assert data_caches(lambda path: files.get(path, ""), cpu=0) == {}
