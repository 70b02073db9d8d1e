package daemon

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// An access control list as the kernel takes it (acl(5), <linux/posix_acl_xattr.h>): a version,
// then entries of a tag, permissions and a number.
const (
	aclName    = "system.posix_acl_access"
	aclVersion = 2

	aclUserObj, aclUser, aclGroupObj, aclMask, aclOther = 0x01, 0x02, 0x04, 0x10, 0x20

	aclNobody = 0xffffffff // the number of entries that need none
	aclPass   = 1          // through the folder
)

// letPass has one user besides root pass through a folder of mode 0700, and find in it what the
// user has the names of.
func letPass(path string, uid uint32) error {
	acl := binary.LittleEndian.AppendUint32(nil, aclVersion)
	for _, e := range []struct {
		tag, may uint16
		id       uint32
	}{{aclUserObj, 7, aclNobody}, {aclUser, aclPass, uid}, {aclGroupObj, 0, aclNobody}, {aclMask, aclPass, aclNobody}, {aclOther, 0, aclNobody}} {
		acl = binary.LittleEndian.AppendUint16(acl, e.tag)
		acl = binary.LittleEndian.AppendUint16(acl, e.may)
		acl = binary.LittleEndian.AppendUint32(acl, e.id)
	}
	if err := unix.Setxattr(path, aclName, acl, 0); err != nil {
		return fmt.Errorf("an entry for user %d in the access control list of %s (which its file system must have, as tmpfs does): %w", uid, path, err)
	}
	return nil
}
