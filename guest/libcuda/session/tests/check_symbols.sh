#!/bin/sh
# The library must load on glibc 2.17 and export the driver API only.
set -eu
lib=$1
syms=$(objdump -T "$lib")
newest=$(printf '%s\n' "$syms" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1)
if [ "$(printf '%s\nGLIBC_2.17\n' "$newest" | sort -V | tail -n 1)" != GLIBC_2.17 ]; then
	echo "check_symbols: $lib needs $newest:" >&2
	printf '%s\n' "$syms" | grep "$newest" >&2
	exit 1
fi
other=$(nm -D --defined-only "$lib" | awk '{print $3}' | grep -v '^cu' || true)
if [ -n "$other" ]; then
	echo "check_symbols: $lib exports more than cu*: $other" >&2
	exit 1
fi
needed=$(objdump -p "$lib" | awk '$1 == "NEEDED" {print $2}' | grep -Ev '^(libc\.so\.6|libpthread\.so\.0|ld-linux-x86-64\.so\.2)$' || true)
if [ -n "$needed" ]; then
	echo "check_symbols: $lib needs $needed" >&2
	exit 1
fi
objdump -p "$lib" | grep -q 'SONAME *libcuda.so.1$' || { echo "check_symbols: wrong SONAME" >&2; exit 1; }
echo "check_symbols: $newest at most, $(nm -D --defined-only "$lib" | wc -l) symbols"
