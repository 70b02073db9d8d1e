"""NVRTC, nvJitLink and the driver's compile cache: what is found again, in one process and the next, and that it is what would have been compiled.

nvrtc_cache.py LIBNVRTC [LIBNVJITLINK] runs every case, each in processes of its own. NVRTC's --enable-cache-trace says in the program's log what it found.
"""
import ctypes
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time

SOURCE = rb"""
template <int N> __device__ float f(float x, float y) { return f<N - 1>(x * y + sqrtf(x), x / y) * x; }
template <> __device__ float f<0>(float x, float y) { return x - y; }
extern "C" __global__ void k(float *p) { p[threadIdx.x] = f<40>(p[threadIdx.x], p[0]); }
"""
FOUND = {"ptx": b"Successfully retrieved cached ptx", "cubin": b"Successfully retrieved cached cubin"}
ADDED = {"ptx": b"Successfully added cache entry", "cubin": b"Successfully added cubin cache entry"}


class Compiler:
    def __init__(self, path):
        self.lib = ctypes.CDLL(path)

    def result(self, program, what):
        size = ctypes.c_size_t()
        assert getattr(self.lib, f"nvrtcGet{what}Size")(program, ctypes.byref(size)) == 0
        data = ctypes.create_string_buffer(size.value)
        assert getattr(self.lib, f"nvrtcGet{what}")(program, data) == 0
        return data.raw

    def compile(self, options):
        """What came out, what was found and kept, and the seconds it took."""
        program = ctypes.c_void_p()
        assert self.lib.nvrtcCreateProgram(ctypes.byref(program), SOURCE, b"k.cu", 0, None, None) == 0
        options = [o.encode() for o in ["--enable-cache-trace", *options]]
        start = time.perf_counter()
        code = self.lib.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
        seconds = time.perf_counter() - start
        log = self.result(program, "ProgramLog")
        assert code == 0, log
        made = {what: hashlib.sha256(self.result(program, what)).hexdigest() for what in ("PTX", "CUBIN")}
        self.lib.nvrtcDestroyProgram(ctypes.byref(program))
        told = {name: [k for k, text in texts.items() if text in log] for name, texts in (("found", FOUND), ("added", ADDED))}
        return {"made": made, "seconds": seconds, "log": log.decode(errors="replace"), **told}


LTO = [b'extern "C" __device__ float g(float x, float y) { for (int i = 0; i < 40; i++) x = x * y + sqrtf(x) / y; return x; }',
       b'extern "C" __device__ float g(float, float); extern "C" __global__ void k(float *p) { p[threadIdx.x] = g(p[threadIdx.x], p[0]); }']
PTX = b".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 p) { ret; }\n\0"


class Linker:
    """nvJitLink, whose symbols carry a version."""

    INPUT_PTX, INPUT_LTOIR = 2, 3

    def __init__(self, path, compiler):
        self.lib, self.compiler = ctypes.CDLL(path), compiler

    def call(self, name, *args):
        for symbol in (f"__{name}_13_0", f"__{name}_12_4", f"__{name}_12_0", name):
            if hasattr(self.lib, symbol):
                assert getattr(self.lib, symbol)(*args) == 0, (symbol, args)
                return
        raise AttributeError(name)

    def lto(self, source):
        nvrtc, program = self.compiler.lib, ctypes.c_void_p()
        assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"k.cu", 0, None, None) == 0
        options = (ctypes.c_char_p * 3)(b"--gpu-architecture=sm_90", b"-dlto", b"-rdc=true")
        assert nvrtc.nvrtcCompileProgram(program, 3, options) == 0
        return self.compiler.result(program, "LTOIR")

    def link(self, options):
        inputs = [(self.INPUT_LTOIR, self.lto(s)) for s in LTO] if "-lto" in options else [(self.INPUT_PTX, PTX)]
        handle, size = ctypes.c_void_p(), ctypes.c_size_t()
        texts = [o.encode() for o in ["-arch=sm_90", *options]]
        start = time.perf_counter()
        self.call("nvJitLinkCreate", ctypes.byref(handle), len(texts), (ctypes.c_char_p * len(texts))(*texts))
        for kind, data in inputs:
            self.call("nvJitLinkAddData", handle, kind, data, ctypes.c_size_t(len(data)), b"input")
        self.call("nvJitLinkComplete", handle)
        self.call("nvJitLinkGetLinkedCubinSize", handle, ctypes.byref(size))
        cubin = ctypes.create_string_buffer(size.value)
        self.call("nvJitLinkGetLinkedCubin", handle, cubin)
        seconds = time.perf_counter() - start
        self.call("nvJitLinkDestroy", ctypes.byref(handle))
        return {"made": hashlib.sha256(cubin.raw).hexdigest(), "seconds": seconds}


class Cases:
    def __init__(self, libraries, folder):
        self.libraries, self.folder, self.failed, self.passed = libraries, folder, 0, 0

    def start(self, jobs, what="compile", **environment):
        """A process that compiles, or links, with each list of options in turn."""
        env = {**os.environ, "CUDA_CACHE_PATH": self.folder, **environment}
        return subprocess.Popen([sys.executable, __file__, *self.libraries, what, json.dumps(jobs)], env=env, stdout=subprocess.PIPE)

    def run(self, jobs, what="compile", **environment):
        p = self.start(jobs, what, **environment)
        out = p.communicate()[0]
        assert p.returncode == 0, "a compiling process failed"
        return json.loads(out)

    def check(self, what, ok, more=""):
        print("ok    " if ok else "FAILED", what, more, flush=True)
        self.passed, self.failed = self.passed + bool(ok), self.failed + (not ok)

    def files(self):
        """Entries, ours or the driver's: all but the books."""
        return [os.path.join(d, f) for d, _, names in os.walk(self.folder) for f in names if f not in ("index", "usage")]


ARCH = "--gpu-architecture=sm_90"
BOTH = ["ptx", "cubin"]


def twice(c):
    plain, first, second = c.run([[ARCH, "--no-cache"], [ARCH], [ARCH]])
    third, = c.run([[ARCH]])
    c.check("the first compilation is kept", first["found"] == [] and first["added"] == BOTH, first["log"] if first["added"] != BOTH else "")
    c.check("the second finds it", second["found"] == BOTH)
    c.check("and so does the next process", third["found"] == BOTH)
    c.check("they are equal", plain["made"] == first["made"] == second["made"] == third["made"])
    times = [r["seconds"] * 1e3 for r in (plain, first, second, third)]
    print("      without cache %.0f ms, first %.0f, second %.0f, next process %.0f" % tuple(times))


def options(c):
    """Options that change the PTX alone, or what is made of it alone, or a name."""
    sets = [[ARCH, *more] for more in ([], ["--ftz=true"], ["--prec-div=false"], ["--prec-sqrt=false"], ["--fmad=false"], ["--use_fast_math"],
                                      ["-lineinfo"], ["-G"], ["--maxrregcount=16"], ["--ptxas-options=-O1"], ["-rdc=true"])]
    sets += [["--gpu-architecture=sm_90a"], ["--gpu-architecture=sm_80"]]
    plain = c.run([[*o, "--no-cache"] for o in sets])
    cached = c.run(sets + sets)
    for i, o in enumerate(sets):
        made = [r["made"] for r in (plain[i], cached[i], cached[i + len(sets)])]
        c.check("as without a cache: " + " ".join(o), made[0] == made[1] == made[2] and cached[i + len(sets)]["found"] == BOTH)


def damaged(c):
    good, = c.run([[ARCH]])
    for how in ("changed in the middle", "cut", "empty", "a folder"):
        for path in c.files():
            size = os.path.getsize(path)
            if how == "a folder":
                os.unlink(path)
                os.mkdir(path)
                continue
            with open(path, "r+b") as f:
                if how == "changed in the middle":
                    f.seek(size // 2)
                    f.write(b"damage")
                else:
                    f.truncate(size // 2 if how == "cut" else 0)
        got, = c.run([[ARCH]])
        c.check("entries are " + how, got["made"] == good["made"] and got["found"] == [])


def variables(c):
    off, = c.run([[ARCH]], CUDA_CACHE_DISABLE="1")
    c.check("CUDA_CACHE_DISABLE=1", off["found"] == [] and off["added"] == [] and c.files() == [])
    small = c.run([[ARCH, f"--maxrregcount={n}"] for n in range(32, 40)], CUDA_CACHE_MAXSIZE="200000")
    total = sum(os.path.getsize(f) for f in c.files())
    c.check("CUDA_CACHE_MAXSIZE", 0 < total <= 200000 and small[-1]["added"] != [], f"{total} bytes in {len(c.files())} files")
    none, = c.run([[ARCH]], CUDA_CACHE_PATH="/proc/nowhere")
    c.check("no folder", none["found"] == [] and none["added"] == [])
    home = {k: v for k, v in os.environ.items() if k not in ("CUDA_CACHE_PATH",)}
    home["HOME"] = c.folder
    subprocess.run([sys.executable, __file__, *c.libraries, "compile", json.dumps([[ARCH]])], env=home, stdout=subprocess.DEVNULL, check=True)
    c.check("below HOME", any("/.nv/ComputeCache/" in f for f in c.files()))


def crowd(c):
    plain, = c.run([[ARCH, "--no-cache"]])
    processes = [c.start([[ARCH]] * 3) for _ in range(4)]
    results = [r for p in processes for r in json.loads(p.communicate()[0])]
    c.check("four processes at once", all(r["made"] == plain["made"] for r in results) and any(r["found"] == BOTH for r in results))


def linked(c):
    if len(c.libraries) < 2:
        print("      no libnvJitLink: not linked")
        return
    sets = [["-lto", *more] for more in ([], ["-ftz=1"], ["-prec-div=0"], ["-fma=0"], ["-maxrregcount=16"])] + [[], ["-g"]]
    plain = c.run(sets, "link", CUDA_CACHE_DISABLE="1")
    c.check("links without a cache", c.files() == [])
    first, second = c.run(sets, "link"), c.run(sets, "link")
    kept = len(c.files())
    c.check("links are kept", kept > len(sets), f"{kept} files")
    for i, o in enumerate(sets):
        c.check("linked as without a cache: " + " ".join(o), plain[i]["made"] == first[i]["made"] == second[i]["made"])
    print("      without cache %.0f ms, first %.0f, next process %.1f" % tuple(sum(r["seconds"] for r in run) * 1e3 for run in (plain, first, second)))


def work(libraries, what, jobs):
    """What a process of start does."""
    compiler = Compiler(libraries[0])
    one = compiler.compile if what == "compile" else Linker(libraries[1], compiler).link
    json.dump([one(o) for o in jobs], sys.stdout)


def main():
    *libraries, last = sys.argv[1:]
    if last.startswith("["):
        *libraries, what = libraries
        work(libraries, what, json.loads(last))
        return 0
    libraries = [os.path.abspath(p) for p in (*libraries, last)]
    passed = failed = 0
    for case in (twice, options, damaged, variables, crowd, linked):
        with tempfile.TemporaryDirectory() as folder:
            c = Cases(libraries, folder)
            case(c)
            passed, failed = passed + c.passed, failed + c.failed
    print(f"nvrtc: {passed} passed, {failed} failed")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
