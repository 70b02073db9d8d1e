package cdi

import (
	"os"
	"path/filepath"

	"tags.cncf.io/container-device-interface/specs-go"
)

// Libraries are the files of this host that containers get: those that packages put into
// /usr/lib/causeway.
type Libraries struct{ Folder string }

// libcuda is the one without which there is no CUDA.
const libcuda = "libcuda.so.1"

// Check says why containers could not have the libraries.
func (l Libraries) Check() error {
	_, err := os.Stat(filepath.Join(l.Folder, libcuda))
	return err
}

// loaderFolders are where the loaders of Debian's and Fedora's kin look without a cache: a path
// that an image does not have is made, and idle.
var loaderFolders = []string{"/usr/lib/x86_64-linux-gnu", "/usr/lib64"}

// inContainer is where a container has the folder with its vGPU's sockets.
const inContainer = "/run/causeway"

// Container are the edits for CUDA programs in a container; folder has the vGPU's sockets.
// Connecting needs no writable mount.
func (l Libraries) Container(folder string) specs.ContainerEdits {
	e := specs.ContainerEdits{
		// void tells NVIDIA's own runtime hook, if there is one, to stay out of it.
		Env:    []string{"CAUSEWAY=unix:" + inContainer + "/session", "NVIDIA_VISIBLE_DEVICES=void"},
		Mounts: []*specs.Mount{bind(folder, inContainer)},
	}
	for _, so := range []string{libcuda, "libnvidia-ml.so.1"} {
		if !l.has(so) {
			continue
		}
		for _, dir := range loaderFolders {
			e.Mounts = append(e.Mounts, bind(filepath.Join(l.Folder, so), filepath.Join(dir, so)))
		}
	}
	if l.has("bin/nvidia-smi") { // an image's own is hidden, as with NVIDIA's toolkit
		e.Mounts = append(e.Mounts, bind(filepath.Join(l.Folder, "bin/nvidia-smi"), "/usr/bin/nvidia-smi"))
	}
	if hook := filepath.Join(l.Folder, "bin/cdi-hook"); l.has("bin/cdi-hook") {
		// For what asks `ldconfig -p`.
		e.Hooks = append(e.Hooks, &specs.Hook{HookName: "createContainer", Path: hook, Args: []string{"cdi-hook"}})
	}
	return e
}

func (l Libraries) has(name string) bool {
	_, err := os.Stat(filepath.Join(l.Folder, name))
	return err == nil
}

// VM are the edits for QEMU in a container: the vhost-user socket, below a folder by the vGPU's
// name. It is mounted writable: some files' systems say so of sockets, too.
func VM(socket, folder, name string) specs.ContainerEdits {
	return specs.ContainerEdits{Mounts: []*specs.Mount{
		{HostPath: socket, ContainerPath: filepath.Join(folder, name+".sock"), Options: []string{"bind", "rw", "nosuid", "nodev", "noexec"}},
	}}
}

func bind(from, to string) *specs.Mount {
	return &specs.Mount{HostPath: from, ContainerPath: to, Options: []string{"bind", "ro", "nosuid", "nodev"}}
}
