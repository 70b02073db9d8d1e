// Package api is what causewayd says to those who use it, and what each vGPU's device process says
// to causewayd: HTTP with JSON bodies over Unix sockets. It holds the types, the paths and a
// client, and imports nothing of the parts behind it.
//
// causewayd serves at /run/causeway/causewayd.sock:
//
//	GET    /v1/version                    Version
//	GET    /v1/gpus                       []GPU
//	POST   /v1/gpus/{id}/drain, /resume   no new vGPU is placed on a drained GPU
//	GET    /v1/vgpus                      []VGPU
//	GET    /v1/vgpus/{vm}/{name}          VGPU
//	GET    /v1/profiles                   []Profile
//	PUT    /v1/vgpus/{vm}/{name}          Wish; returns the VGPU once its socket takes connections. What a Wish leaves out stays as it is
//	PUT    /v1/vgpus/{vm}/{name}/limits   Change; while programs run. What it leaves out stays; returns the Limits that hold
//	DELETE /v1/vgpus/{vm}/{name}          ends the device process; ?if=unused refuses while a VM is connected
//	GET    /v1/vgpus/{vm}/{name}/log      text; ?follow=1 goes on, ?lines=N begins N lines before the end
//	GET    /metrics                       Prometheus text
//
// A device process serves beside its vhost-user socket, at /run/causeway/{vm}/{name}.ctl:
//
//	GET    /v1/status                     Status
//	PUT    /v1/limits                     Change; returns Limits
//	POST   /v1/rebuild                    sessions move to fresh workers
//	POST   /v1/stop                       ends the device
//
// Every error is an Error, with the HTTP status that fits: 400 a request that is wrong in itself,
// 403 a role that does not allow it, 404 nothing of that name, 409 a state that does not allow it,
// 507 no room.
package api
