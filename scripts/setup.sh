#!/usr/bin/env bash
# Make the virtual environment and find the tools for one of:
#   demo  what compiling and running the example needs
#   dev   what the tests and checks need as well
#   board what the tests on an emulated board need besides
# A second run does nothing. As root on Debian or Ubuntu missing packages are installed, otherwise they are named.
# In CI (CI is set) every tool is required; elsewhere the tests of a missing optional tool are skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
profile=${1:-dev}
board=
[ "$profile" != board ] || { profile=dev; board=1; }
venv=${VENV:-.venv}
python=${PYTHON:-python3}

say() { printf '%s\n' "$*" >&2; }
die() { say "setup: $*"; exit 1; }
has() { PATH=$PATH:/usr/sbin:/sbin command -v "$1" >/dev/null 2>&1; }

# One line a need: a program and the Debian packages that have it.
required="cmake:cmake make:make"
optional=""
if [ "$profile" = dev ]; then
    required="$required gcc:gcc,libc6-dev g++:g++"
    optional="ninja:ninja-build ccache:ccache clang:clang clang-format:clang-format cppcheck:cppcheck"
    optional="$optional sshd:openssh-server ssh:openssh-client"
    optional="$optional arm-none-eabi-gcc:gcc-arm-none-eabi,libnewlib-arm-none-eabi"
    optional="$optional qemu-system-arm:qemu-system-arm"
    if [ -n "$board" ]; then
        optional="$optional qemu-system-aarch64:qemu-system-arm cpio:cpio"
    fi
    if [ "$(uname -m)" != aarch64 ]; then
        optional="$optional aarch64-linux-gnu-gcc:gcc-aarch64-linux-gnu,libc6-dev-arm64-cross"
        optional="$optional qemu-aarch64:qemu-user"
    fi
    case "$(uname -m)" in
    armv7l | armv8l) ;;
    *)
        optional="$optional arm-linux-gnueabihf-gcc:gcc-arm-linux-gnueabihf,libc6-dev-armhf-cross"
        optional="$optional qemu-arm:qemu-user"
        ;;
    esac
elif [ "$profile" != demo ]; then
    die "there is no profile '$profile'; use demo, dev or board"
fi

missing() { # packages of the needs in $1 whose program is not there
    local need
    for need in $1; do
        has "${need%%:*}" || printf '%s ' "${need##*:}" | tr ',' ' '
    done
}

find_opencl() { # the OpenCL headers and PoCL are no programs: ask dpkg
    [ "$profile" = dev ] && has dpkg-query || return 0
    local package
    for package in pocl-opencl-icd ocl-icd-opencl-dev; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' ||
            printf '%s ' "$package"
    done
}

find_sanitizers() { # clang's runtimes are a package of their own in newer releases
    [ "$profile" = dev ] && has clang && has apt-cache || return 0
    echo 'int main(void) { return 0; }' |
        clang -fsanitize=address,undefined -x c - -o /dev/null 2>/dev/null && return 0
    apt-cache show libclang-rt-dev >/dev/null 2>&1 && printf 'libclang-rt-dev '
    return 0
}

has "$python" || die "python3 is not installed; on Debian and Ubuntu: apt-get install python3 python3-venv"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    die "$("$python" --version) is too old; install Python 3.10 or newer and set PYTHON to it"

need=$(missing "$required")
has cc || has gcc || has clang || need="$need gcc libc6-dev"
if [ ! -x "$venv/bin/python" ] && ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    need="$need $("$python" -c 'import sys; print("python3.%d-venv" % sys.version_info[1])') python3-venv"
fi
want="$(missing "$optional")$(find_opencl)$(find_sanitizers)"

if [ -n "${need// /}${want// /}" ]; then
    if [ "$(id -u)" = 0 ] && has apt-get; then
        say "setup: installing $need$want"
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -q >&2 || say "setup: apt-get update failed, trying with the package lists there are"
        # Package by package, so that one which this release lacks does not cost the others.
        for package in $need $want; do
            apt-get install -y -q --no-install-recommends "$package" >&2 ||
                say "setup: cannot install $package"
        done
    fi
    need=$(missing "$required")
    has cc || has gcc || has clang || need="$need gcc libc6-dev"
    [ -x "$venv/bin/python" ] || "$python" -c 'import ensurepip, venv' 2>/dev/null || need="$need python3-venv"
    want="$(missing "$optional")$(find_opencl)$(find_sanitizers)"
    if [ -n "${need// /}" ]; then
        die "these are needed; on Debian and Ubuntu, as root: apt-get install $need$want"
    fi
    if [ -n "${want// /}" ]; then
        [ -z "${CI:-}" ] || die "CI needs every tool; as root: apt-get install $want"
        say "setup: going on without some tools, their tests are skipped; as root: apt-get install $want"
    fi
fi

stamp="$venv/.aotgen-$profile"
wanted=$(cat pyproject.toml scripts/setup.sh | cksum)${CI:+ ci}
if [ "$(cat "$stamp" 2>/dev/null || true)" = "$wanted" ]; then
    exit 0
fi
if [ ! -x "$venv/bin/python" ]; then
    say "setup: making $venv"
    "$python" -m venv "$venv" || die "cannot make a virtual environment in $venv"
fi
say "setup: installing aotgen and its Python packages into $venv"
"$venv/bin/python" -m pip install -qq --disable-pip-version-check -e ".[$profile]" ||
    die "pip failed; it needs a network or a package mirror"
if [ "$profile" = dev ] && [ -n "${CI:-}" ]; then
    # For the tests of the tutorials; elsewhere they are skipped without it, as it is large. PIP_EXTRA_INDEX_URL may
    # name an index of its wheels for CPUs alone.
    "$venv/bin/python" -m pip install -qq --disable-pip-version-check -e ".[tutorial]" torch==2.13.0 ||
        die "pip failed to install torch"
fi
printf '%s\n' "$wanted" >"$stamp"
