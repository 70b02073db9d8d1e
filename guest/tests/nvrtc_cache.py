"""NVRTC and the driver's compile cache: what is found again, in one process and the next, and that it is what would have been compiled.

nvrtc_cache.py LIBNVRTC runs every case, each in processes of its own. NVRTC's --enable-cache-trace says in the program's log what it found.
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


class Cases:
    def __init__(self, library, folder):
        self.library, self.folder, self.failed, self.passed = library, folder, 0, 0

    def start(self, jobs, **environment):
        """A process that compiles with each list of options in turn."""
        env = {**os.environ, "CUDA_CACHE_PATH": self.folder, **environment}
        return subprocess.Popen([sys.executable, __file__, self.library, json.dumps(jobs)], env=env, stdout=subprocess.PIPE)

    def run(self, jobs, **environment):
        p = self.start(jobs, **environment)
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
    subprocess.run([sys.executable, __file__, c.library, json.dumps([[ARCH]])], env=home, stdout=subprocess.DEVNULL, check=True)
    c.check("below HOME", any("/.nv/ComputeCache/" in f for f in c.files()))


def crowd(c):
    plain, = c.run([[ARCH, "--no-cache"]])
    processes = [c.start([[ARCH]] * 3) for _ in range(4)]
    results = [r for p in processes for r in json.loads(p.communicate()[0])]
    c.check("four processes at once", all(r["made"] == plain["made"] for r in results) and any(r["found"] == BOTH for r in results))


def main():
    library = os.path.abspath(sys.argv[1])
    if len(sys.argv) > 2:
        compiler = Compiler(library)
        json.dump([compiler.compile(o) for o in json.loads(sys.argv[2])], sys.stdout)
        return 0
    passed = failed = 0
    for case in (twice, options, damaged, variables, crowd):
        with tempfile.TemporaryDirectory() as folder:
            c = Cases(library, folder)
            case(c)
            passed, failed = passed + c.passed, failed + c.failed
    print(f"nvrtc: {passed} passed, {failed} failed")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
