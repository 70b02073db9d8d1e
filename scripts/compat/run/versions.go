package main

import (
	"os/exec"
	"strings"
)

const packages = `
import importlib.metadata as m
names = ("torch", "torchvision", "triton", "jax", "cupy-cuda13x", "numba-cuda", "cuda-bindings", "cuda-core", "transformers", "safetensors",
         "onnxruntime", "nvidia-cublas", "nvidia-cudnn-cu13", "nvidia-cufft", "nvidia-cusolver", "nvidia-cusparse", "nvidia-curand",
         "nvidia-nccl-cu13", "nvidia-ml-py", "numpy")
def version(n):
    try: return m.version(n)
    except m.PackageNotFoundError: return "absent"
print(", ".join(f"{n} {version(n)}" for n in names))
`

// versions describes the machine: GPU, driver, kernel, compiler, Python packages.
func versions() []string {
	var lines []string
	for _, c := range []struct {
		name string
		argv []string
	}{
		{"GPU and driver", []string{"nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"}},
		{"kernel", []string{"uname", "-r"}},
		{"nvcc", []string{"sh", "-c", "PATH=$PATH:/usr/local/cuda/bin; nvcc --version | sed -n 's/.*release //p'"}},
		{"Python", []string{"python3", "-c", "import sys; print(sys.version.split()[0])"}},
		{"packages", []string{"python3", "-c", packages}},
	} {
		out, err := exec.Command(c.argv[0], c.argv[1:]...).Output()
		text := strings.Join(strings.Fields(string(out)), " ")
		if err != nil || text == "" {
			text = "unknown"
		}
		lines = append(lines, c.name+": "+text)
	}
	return lines
}
