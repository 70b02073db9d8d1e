package kubevirt

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// review is a question as the API server asks it.
func review(version, resource, object string) string {
	return fmt.Sprintf(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u-1","operation":"CREATE","namespace":"team",
		"resource":{"group":%q,"version":"v1","resource":%q},"object":%s}}`, version, resource, object)
}

func migrationOf(vmi string) string {
	return review("kubevirt.io", "virtualmachineinstancemigrations", `{"metadata":{"generateName":"evacuation-"},"spec":{"vmiName":"`+vmi+`"}}`)
}

// TestAnswers: each question has its answer, on its path and in the API server's form, and is
// counted.
func TestAnswers(t *testing.T) {
	f := newFake()
	one := &resourceapi.ResourceClaimTemplate{}
	one.Spec.Spec.Devices.Requests = []resourceapi.DeviceRequest{request(Class, 1)}
	f.templates["vgpu-16g"], f.templates["two-16g"] = one, one
	f.running("busy", "node1", "node1", false, metav1.ConditionTrue)
	var counted []string
	mux := http.NewServeMux()
	(&Webhook{Cluster: f, Log: slog.New(slog.DiscardHandler), Answered: func(a, v string) { counted = append(counted, a+" "+v) }}).Register(mux)
	_, train := recorded(t, "train")
	_, two := recorded(t, "two")
	_, plain := recorded(t, "plain")
	for _, c := range []struct {
		path, body string
		status     int
		allowed    bool
		patched    bool
		says       string
	}{
		{PodsPath, review("", "pods", string(train)), 200, true, true, ""},
		{PodsPath, review("", "pods", string(plain)), 200, true, false, ""},
		{PodsPath, review("", "pods", string(two)), 200, false, false, "is for 1 GPUs of Causeway's, and the VM has 2 filesystems"},
		{MigrationsPath, migrationOf("busy"), 200, false, false, "the VM stays where it is: programs in it have sessions"},
		{MigrationsPath, migrationOf("plain"), 200, true, false, ""},
		{MigrationsPath, review("", "pods", string(train)), 400, false, false, "no admission review"},
		{PodsPath, migrationOf("busy"), 400, false, false, "no admission review"},
		{PodsPath, "{", 400, false, false, "no admission review"},
		{"/", migrationOf("busy"), 404, false, false, ""},
		{PodsPath, strings.Repeat(" ", MostReview+1), 413, false, false, "too large"},
	} {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(http.MethodPost, c.path, strings.NewReader(c.body)))
		if w.Code != c.status {
			t.Errorf("%s %.80s: status %d, want %d", c.path, c.body, w.Code, c.status)
		}
		if w.Code != 200 {
			if !strings.Contains(w.Body.String(), c.says) {
				t.Errorf("%s, want %q", w.Body, c.says)
			}
			continue
		}
		var got admissionv1.AdmissionReview
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || got.Response == nil || got.Kind != "AdmissionReview" || got.Response.UID != "u-1" {
			t.Fatalf("%s: %v", w.Body, err)
		}
		r := got.Response
		if r.Allowed != c.allowed || (r.Patch != nil) != c.patched || (r.PatchType != nil) != c.patched || (r.Result != nil) == c.allowed {
			t.Errorf("%s %.80s: %+v", c.path, c.body, r)
		}
		if r.Result != nil && !strings.Contains(r.Result.Message, c.says) {
			t.Errorf("%q, want %q", r.Result.Message, c.says)
		}
	}
	if want := "pods changed,pods allowed,pods refused,migrations refused,migrations allowed"; strings.Join(counted, ",") != want {
		t.Errorf("counted %v", counted)
	}
	w := httptest.NewRecorder()
	if mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, PodsPath, nil)); w.Code != http.StatusMethodNotAllowed {
		t.Errorf("GET: %d", w.Code)
	}
}

// TestNoQuestions: what is no question is none.
func TestNoQuestions(t *testing.T) {
	good := review("", "pods", `{"metadata":{"name":"a"}}`)
	if q, err := ReadQuestion([]byte(good)); err != nil || q.Pod.Name != "a" || q.Namespace != "team" {
		t.Fatalf("%+v, %v", q, err)
	}
	for _, text := range []string{
		"", "null", "[]", `{"kind":"AdmissionReview"}`,
		strings.Replace(good, "v1", "v1beta1", 1), strings.Replace(good, "AdmissionReview", "Pod", 1), strings.Replace(good, "u-1", "", 1),
		strings.Replace(good, "u-1", strings.Repeat("u", 300), 1), strings.Replace(good, "CREATE", "UPDATE", 1), strings.Replace(good, `"pods"`, `"secrets"`, 1),
		strings.Replace(good, `"team"`, `"team","subResource":"status"`, 1), strings.Replace(good, `{"metadata":{"name":"a"}}`, "null", 1),
		strings.Replace(good, `{"metadata":{"name":"a"}}`, `{"metadata":7}`, 1), strings.Replace(good, `{"metadata":{"name":"a"}}`, `{"spec":{"containers":{}}}`, 1),
		migrationOf(""), migrationOf(strings.Repeat("v", 300)), `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}`,
	} {
		if q, err := ReadQuestion([]byte(text)); err == nil {
			t.Errorf("%.100s: %+v", text, q)
		}
	}
}

// FuzzReview: whatever is sent, there is a clear answer; a patch is only for a pod that has all
// that it names, and leaves a pod that asks for no more.
func FuzzReview(f *testing.F) {
	files, err := filepath.Glob("testdata/*.json")
	if err != nil || len(files) == 0 {
		f.Fatalf("%v, %v", files, err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add([]byte(review("", "pods", string(b))))
	}
	f.Add([]byte(migrationOf("vm")))
	f.Add([]byte(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":null}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		q, err := ReadQuestion(b)
		if err != nil {
			return
		}
		if (q.Pod == nil) == (q.Migration == nil) || q.UID == "" {
			t.Fatalf("%+v", q)
		}
		if q.Pod == nil || !IsLauncher(q.Pod) {
			return
		}
		s, err := ReadPod(q.Pod)
		if err != nil || s.Done() {
			return
		}
		patch, err := s.Patch(q.Pod)
		if err != nil || !json.Valid(patch) || s.VGPUs < 1 || len(s.remove) < s.VGPUs {
			t.Fatalf("%s, %v, %+v", patch, err, s)
		}
		text, err := json.Marshal(q.Pod)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := ReadPod(swapped(t, q.Pod, text)); err != nil || !again.Done() || bytes.Equal(text, patch) {
			t.Fatalf("after the patch: %+v, %v", again, err)
		}
	})
}
