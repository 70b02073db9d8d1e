package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"
)

const deployFolder = "../deploy"

// deployed is an object of the kustomization.
type deployed struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        metav1.ObjectMeta   `json:"metadata"`
	Rules           []rbacv1.PolicyRule `json:"rules"`
	Webhooks        []hook              `json:"webhooks"`

	file string
}

// hook is what a webhook's configuration says of when it is asked, and of when it does not answer.
type hook struct {
	Name           string                    `json:"name"`
	FailurePolicy  string                    `json:"failurePolicy"`
	ObjectSelector *metav1.LabelSelector     `json:"objectSelector"`
	TimeoutSeconds int                       `json:"timeoutSeconds"`
	ClientConfig   map[string]map[string]any `json:"clientConfig"`
}

// objectsOf are all that `kubectl apply -k` of a folder makes, of a list of files.
func objectsOf(t *testing.T, files ...string) (list []deployed) {
	t.Helper()
	for _, f := range files {
		b, err := os.ReadFile(filepath.Join(deployFolder, f))
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range strings.Split(string(b), "\n---\n") {
			d := deployed{file: f}
			if err := yaml.Unmarshal([]byte(text), &d); err != nil {
				t.Fatalf("%s: %v", f, err)
			}
			list = append(list, d)
		}
	}
	return list
}

// kustomized are the files of the kustomization.
func kustomized(t *testing.T) []string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(deployFolder, "kustomization.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var k struct {
		Resources []string `json:"resources"`
	}
	if err := yaml.Unmarshal(b, &k); err != nil || len(k.Resources) < 5 {
		t.Fatalf("%+v, %v", k, err)
	}
	return k.Resources
}

// TestUninstall: what is applied is in the namespace causeway, which goes with all that programs
// make there (the webhook's Secret, the controller's Lease), or is of the cluster, has the name of
// Causeway, by which the lab cluster looks for what is left, and goes by its own name. No object is
// there twice.
func TestUninstall(t *testing.T) {
	ofCluster := []string{"Namespace", "ClusterRole", "ClusterRoleBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "DeviceClass", "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"}
	seen := map[string]bool{}
	for _, d := range objectsOf(t, kustomized(t)...) {
		what := d.Kind + " " + d.Metadata.Namespace + "/" + d.Metadata.Name
		if d.Kind == "" || !strings.HasPrefix(d.Metadata.Name, "causeway") || seen[what] {
			t.Errorf("%s: %s: none of Causeway's, or twice", d.file, what)
		}
		seen[what] = true
		if want := map[bool]string{false: "causeway"}[slices.Contains(ofCluster, d.Kind)]; d.Metadata.Namespace != want {
			t.Errorf("%s: %s is in %q, not in %q", d.file, what, d.Metadata.Namespace, want)
		}
		if len(d.Metadata.Finalizers) != 0 {
			t.Errorf("%s: %s stays until somebody takes its finalizers away", d.file, what)
		}
	}
}

// TestPodSecurity: what is deployed has a namespace that lets it, whatever a cluster's default is:
// causeway-dra takes folders of the node.
func TestPodSecurity(t *testing.T) {
	for _, d := range objectsOf(t, kustomized(t)...) {
		if d.Kind == "Namespace" && d.Metadata.Labels["pod-security.kubernetes.io/enforce"] != "privileged" {
			t.Errorf("%s: %s has the labels %v", d.file, d.Metadata.Name, d.Metadata.Labels)
		}
	}
}

// TestRights: who reads pods, Secrets and all that is, of the accounts that are deployed; each
// right is named, so that another is one that somebody has thought of.
func TestRights(t *testing.T) {
	reads := map[string][]string{}
	for _, d := range objectsOf(t, append(kustomized(t), "causeway-fleet-moves.yaml")...) {
		if d.Kind != "ClusterRole" && d.Kind != "Role" {
			continue
		}
		for _, r := range d.Rules {
			for _, all := range [][]string{r.APIGroups, r.Resources, r.Verbs} {
				if slices.Contains(all, "*") {
					t.Errorf("%s: %s has a right to everything: %+v", d.file, d.Metadata.Name, r)
				}
			}
			for _, what := range []string{"pods", "secrets", "configmaps", "nodes"} {
				if !slices.Contains(r.Resources, what) {
					continue
				}
				right := what + " " + strings.Join(r.Verbs, ",")
				if len(r.ResourceNames) > 0 {
					right += " " + strings.Join(r.ResourceNames, ",")
				}
				reads[d.Metadata.Name] = append(reads[d.Metadata.Name], right)
			}
		}
	}
	want := map[string][]string{
		"causeway-dra":         {"nodes get"},
		"causeway-web":         {"pods list,watch", "nodes list,watch"},
		"causeway-webhook":     {"pods list", "secrets get,update causeway-webhook-tls", "secrets create"},
		"causeway-fleet-moves": {"pods get"},
	}
	for name := range want {
		if !slices.Equal(reads[name], want[name]) {
			t.Errorf("%s may %q, not %q", name, reads[name], want[name])
		}
		delete(reads, name)
	}
	if len(reads) != 0 {
		t.Errorf("also: %q", reads)
	}
}

// TestWebhookDown: with the webhook down the API server lets all migrations go, and all pods but
// those of VMs with the label, whose reason is its own event. The recorded pods are KubeVirt's. The
// paths with the token are the webhook's to write: an apply must not take them away.
func TestWebhookDown(t *testing.T) {
	found := 0
	for _, d := range objectsOf(t, "webhook.yaml") {
		for _, h := range d.Webhooks {
			found++
			if service := h.ClientConfig["service"]; service["name"] != "causeway-webhook" || service["path"] != nil || h.TimeoutSeconds != 10 {
				t.Errorf("%s: %+v", h.Name, h)
			}
			if d.Kind == "ValidatingWebhookConfiguration" {
				if h.FailurePolicy != "Ignore" {
					t.Errorf("%s: nobody's VM moves while it is down", h.Name)
				}
				continue
			}
			selects, err := metav1.LabelSelectorAsSelector(h.ObjectSelector)
			if err != nil || h.FailurePolicy != "Fail" {
				t.Fatalf("%s: %s, %v", h.Name, h.FailurePolicy, err)
			}
			for file, asked := range map[string]bool{"train": true, "two": true, "plain": false} {
				b, err := os.ReadFile("../kubevirt/testdata/" + file + ".json")
				if err != nil {
					t.Fatal(err)
				}
				var pod metav1.PartialObjectMetadata
				if err := json.Unmarshal(b, &pod); err != nil {
					t.Fatal(err)
				}
				if selects.Matches(labels.Set(pod.Labels)) != asked {
					t.Errorf("%s: the webhook is asked for it: %v, want %v", file, !asked, asked)
				}
			}
		}
	}
	if found != 2 {
		t.Errorf("%d webhooks", found)
	}
}
