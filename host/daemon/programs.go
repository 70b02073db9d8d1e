package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"causeway/host/api"
	"causeway/host/daemon/config"
)

/*
A vGPU for programs has a folder with two sockets, which a container gets as a whole: a vGPU that
was lost and is made again serves new sockets there, and the container's programs find them. So the
folder stays until the vGPU is released.
*/

// makeProgramsFolder makes it. Whoever reaches the sockets uses the GPU: on the host root does, and
// the vGPU's owner if it has one, for the folder around is closed to others.
func makeProgramsFolder(run string, s *api.Spec) error {
	inner := s.ProgramsPath(run)
	outer := filepath.Dir(inner)
	err := os.MkdirAll(filepath.Dir(outer), 0o755)
	for _, dir := range []struct {
		path string
		mode os.FileMode
	}{{outer, 0o700}, {inner, 0o755}} {
		if err == nil {
			if err = os.Mkdir(dir.path, dir.mode); errors.Is(err, fs.ErrExist) {
				err = nil
			}
		}
		if err == nil {
			err = os.Chmod(dir.path, dir.mode) // whatever the umask is
		}
	}
	if err == nil && s.Owner != "" {
		err = letOwnerPass(outer, s.Owner)
	}
	if err != nil {
		return fmt.Errorf("folder for programs: %w", err)
	}
	return nil
}

// letOwnerPass admits USER of USER or USER:GROUP.
func letOwnerPass(path, owner string) error {
	name, _, _ := strings.Cut(owner, ":")
	uid, _, err := config.Lookup(name)
	if err != nil {
		return err
	}
	return letPass(path, uid)
}

// removeProgramsFolder removes it when its sockets are gone.
func (d *Daemon) removeProgramsFolder(s *api.Spec) {
	inner := s.ProgramsPath(d.run)
	outer := filepath.Dir(inner)
	if err := removeAll(inner, outer); err != nil {
		d.log.Warn("the folder of a vGPU for programs is left", "vgpu", s.Key(), "error", err)
	}
	_ = os.Remove(filepath.Dir(outer)) // stays while other vGPUs of that name are there
}
