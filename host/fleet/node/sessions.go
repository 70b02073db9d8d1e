package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"causeway/host/api"
	"causeway/host/fleet/cdi"
	"causeway/host/fleet/claim"
)

// Sessions tells in the status of VMs' claims whether programs have sessions with their vGPUs,
// which whoever would migrate the VM has to know. Claims of containers are left out: nobody asks,
// and their programs come and go.
type Sessions struct {
	Causewayd Causewayd
	CDI       cdi.Dir
	Claims    Claims
	// Write has the status of a claim be so.
	Write func(context.Context, *resourceapi.ResourceClaim) error
	Every time.Duration
	Log   *slog.Logger

	reported map[types.UID]string // what was written last
	// By vGPU: something of it could not be moved when it was last looked.
	stayed   map[string]bool
	lastOpen map[types.UID]time.Time // when a session was last seen
}

// settle is how long a VM has had no session before that is said: programs that follow one another
// are one change, not many.
const settle = 30 * time.Second

// Run reports until ctx ends.
func (s *Sessions) Run(ctx context.Context) {
	t := time.NewTicker(s.Every)
	defer t.Stop()
	for {
		if err := s.Look(ctx, time.Now()); err != nil && ctx.Err() == nil {
			s.Log.Warn("claims do not say yet whether programs have sessions", "error", err)
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
	}
}

// Look asks causewayd once, and writes what is new.
func (s *Sessions) Look(ctx context.Context, now time.Time) error {
	all, err := s.Causewayd.VGPUs(ctx)
	if err != nil {
		return fmt.Errorf("the node's vGPUs: %w", err)
	}
	open := s.open(all, now)
	files, err := s.CDI.Claims()
	errs := []error{err}
	if s.reported == nil {
		s.reported = map[types.UID]string{}
	}
	for uid := range s.reported {
		if _, there := open[uid]; !there {
			delete(s.reported, uid)
			delete(s.lastOpen, uid)
		}
	}
	for _, c := range files {
		text := describe(open[c.UID])
		if text == "" {
			continue
		}
		text = c.Shares + "\n" + text // another allocation's status says nothing yet
		if s.reported[c.UID] == text {
			continue
		}
		if err := s.write(ctx, c, open[c.UID]); err != nil {
			errs = append(errs, fmt.Errorf("the claim %s/%s: %w", c.Namespace, c.Name, err))
			continue
		}
		s.reported[c.UID] = text
	}
	return errors.Join(errs...)
}

// state is that of a vGPU.
type state struct {
	vgpu  string
	open  metav1.ConditionStatus
	stays string // why its programs cannot move now; "": they can, or nobody would move them
}

// open says of each VM's claim how its vGPUs are.
func (s *Sessions) open(all []api.VGPU, now time.Time) map[types.UID][]state {
	if s.lastOpen == nil {
		s.lastOpen = map[types.UID]time.Time{}
	}
	list, stayed := map[types.UID][]state{}, map[string]bool{}
	defer func() { s.stayed = stayed }()
	for i := range all {
		v := &all[i]
		uid, ours := claim.UIDOf(v.Spec.VM)
		if !ours || v.Spec.Programs {
			continue
		}
		is := metav1.ConditionFalse
		switch {
		case v.Status == nil:
			is = metav1.ConditionUnknown
		case len(v.Status.Sessions) > 0:
			s.lastOpen[uid] = now
			is = metav1.ConditionTrue
		case now.Sub(s.lastOpen[uid]) < settle:
			is = metav1.ConditionTrue
		}
		// What is seen twice in a row is said: a capture may be over in a moment.
		why := staying(v)
		if stayed[v.Spec.Key()] = why != ""; !s.stayed[v.Spec.Key()] {
			why = ""
		}
		list[uid] = append(list[uid], state{v.Spec.Name, is, why})
	}
	return list
}

func describe(list []state) string {
	var words []string
	for _, s := range list {
		words = append(words, s.vgpu+"="+string(s.open)+" "+s.stays)
	}
	slices.Sort(words)
	return strings.Join(words, "\n")
}

// mostStaying bounds what is said of a program; a guest has part in it.
const mostStaying = 300

// staying is why a migratable vGPU's programs cannot move now; "": they can.
func staying(v *api.VGPU) string {
	if !v.Spec.Migratable || v.Status == nil {
		return ""
	}
	for i := range v.Status.Sessions {
		if o := &v.Status.Sessions[i]; o.Unmovable != "" {
			return fmt.Sprintf("process %d: %.*s", o.GuestPID, mostStaying, api.Printable(o.Unmovable))
		}
	}
	return ""
}

// write puts it into the claim's status. A claim that is gone, or another's of that name, is
// nobody's concern.
func (s *Sessions) write(ctx context.Context, c cdi.Claim, states []state) error {
	rc, err := s.Claims(ctx, c.Namespace, c.Name)
	if apierrors.IsNotFound(err) || err == nil && rc.UID != c.UID {
		return nil
	}
	if err != nil {
		return err
	}
	read, err := claim.Read(rc)
	if err != nil {
		return err
	}
	_, bound := claim.NodeOf(rc.Status.Allocation)
	changed := false
	for _, is := range states {
		at := slices.IndexFunc(read.Devices(), func(d claim.Device) bool { return d.Name == is.vgpu })
		if at >= 0 && (bound || !read.Devices()[at].Network) {
			// Of a GPU that binds to no node none may write, and the VM moves with its programs.
			changed = setSessions(rc, &read.Devices()[at], is) || changed
		}
	}
	if !changed {
		return nil
	}
	return s.Write(ctx, rc)
}

// texts of the condition.
var sessionTexts = map[metav1.ConditionStatus][2]string{
	metav1.ConditionTrue:    {claim.HaveSessions, "programs in the VM have sessions with the GPU"},
	metav1.ConditionFalse:   {claim.NoSession, "no program in the VM has a session with the GPU"},
	metav1.ConditionUnknown: {claim.NotKnown, "the vGPU does not answer"},
}

func setSessions(rc *resourceapi.ResourceClaim, d *claim.Device, is state) (changed bool) {
	text := sessionTexts[is.open]
	if is.open == metav1.ConditionTrue && is.stays != "" {
		text = [2]string{claim.ProgramsStay, is.stays}
	}
	at := slices.IndexFunc(rc.Status.Devices, func(a resourceapi.AllocatedDeviceStatus) bool {
		return a.Driver == claim.Driver && a.Pool == d.Pool && a.Device == d.Device && claim.SameShare(a.ShareID, d.ShareID)
	})
	if at < 0 {
		a := resourceapi.AllocatedDeviceStatus{Driver: claim.Driver, Pool: d.Pool, Device: d.Device}
		if d.ShareID != nil {
			share := string(*d.ShareID)
			a.ShareID = &share
		}
		at, rc.Status.Devices = len(rc.Status.Devices), append(rc.Status.Devices, a)
	}
	return meta.SetStatusCondition(&rc.Status.Devices[at].Conditions, metav1.Condition{Type: claim.Sessions, Status: is.open, Reason: text[0], Message: text[1],
		ObservedGeneration: rc.Generation})
}
