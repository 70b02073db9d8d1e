package kubevirt

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"time"
)

// Paths of the webhook.
const (
	PodsPath       = "/pods"
	MigrationsPath = "/migrations"
)

// patience is how long the API server may keep an answer waiting; it waits 10 s by default itself.
const patience = 8 * time.Second

// Webhook answers the API server's questions.
type Webhook struct {
	Cluster Cluster
	Log     *slog.Logger
	// Answered is called with each answer: what was asked, and whether it was allowed, changed or
	// refused. nil: nobody counts.
	Answered func(asked, verdict string)
}

// Register adds its paths.
func (w *Webhook) Register(mux *http.ServeMux) {
	mux.HandleFunc("POST "+PodsPath, func(to http.ResponseWriter, r *http.Request) { w.serve(to, r, w.pod) })
	mux.HandleFunc("POST "+MigrationsPath, func(to http.ResponseWriter, r *http.Request) { w.serve(to, r, w.migration) })
}

// serve reads a question and writes what judge says of it.
func (w *Webhook) serve(to http.ResponseWriter, r *http.Request, judge func(context.Context, *Question) ([]byte, error)) {
	body, err := io.ReadAll(http.MaxBytesReader(to, r.Body, MostReview))
	if err != nil {
		http.Error(to, err.Error(), http.StatusRequestEntityTooLarge)
		return
	}
	q, err := ReadQuestion(body)
	if err != nil {
		w.Log.Warn("a request that is no question", "path", r.URL.Path, "error", err)
		http.Error(to, err.Error(), http.StatusBadRequest)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	patch, refused := judge(ctx, q)
	if errors.Is(refused, ErrReview) {
		http.Error(to, refused.Error(), http.StatusBadRequest)
		return
	}
	w.account(r.URL.Path, q, patch, refused)
	text, err := answer(q.UID, patch, refused)
	if err != nil {
		http.Error(to, err.Error(), http.StatusInternalServerError)
		return
	}
	to.Header().Set("Content-Type", "application/json")
	_, _ = to.Write(text) // who asked may be gone
}

func (w *Webhook) account(path string, q *Question, patch []byte, refused error) {
	verdict := "allowed"
	switch {
	case refused != nil:
		verdict = "refused"
		w.Log.Warn("refused", "path", path, "namespace", q.Namespace, "what", q.what(), "error", refused)
	case patch != nil:
		verdict = "changed"
		w.Log.Info("a VM's pod gets its vGPUs", "namespace", q.Namespace, "pod", q.what())
	}
	if w.Answered != nil {
		w.Answered(path[1:], verdict)
	}
}

// what names the object for people.
func (q *Question) what() string {
	if q.Pod != nil {
		return q.Pod.Name + q.Pod.GenerateName
	}
	return q.Migration.Name + " of " + q.Migration.VMI
}

// pod swaps virtiofsd for the claim.
func (w *Webhook) pod(ctx context.Context, q *Question) ([]byte, error) {
	if q.Pod == nil {
		return nil, ErrReview
	}
	if !IsLauncher(q.Pod) {
		return nil, nil
	}
	s, err := ReadPod(q.Pod)
	if err != nil || s.Done() {
		return nil, err
	}
	if err := s.CheckClaim(ctx, w.Cluster, q.Namespace); err != nil {
		return nil, err
	}
	return s.Patch(q.Pod)
}

func (w *Webhook) migration(ctx context.Context, q *Question) ([]byte, error) {
	if q.Migration == nil {
		return nil, ErrReview
	}
	return nil, CheckMigration(ctx, w.Cluster, q.Namespace, q.Migration)
}
