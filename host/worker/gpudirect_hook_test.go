package worker

import "causeway/remote/verbs"

// Direct has a session's copies go by an adapter.
func Direct(w *Worker, r *verbs.GPURegions) { w.direct(r) }
