package packaging

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

var (
	linkRE    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	namedRE   = regexp.MustCompile(`[A-Za-z0-9_./-]*\b[A-Z][A-Z-]{2,}\.md\b`)
	headingRE = regexp.MustCompile(`(?m)^#+ +(.*)$`)
	fencedRE  = regexp.MustCompile("(?ms)^```.*?^```$")
)

// documents are the Markdown files that git tracks, from the repository's root.
func documents(t *testing.T) []string {
	t.Helper()
	cmd := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.md")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	names := strings.FieldsFunc(string(out), func(r rune) bool { return r == 0 })
	if len(names) < 10 {
		t.Fatalf("only %v", names)
	}
	return names
}

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// anchors are the names of a document's headings, as those who show Markdown make them.
func anchors(text string) (list []string) {
	for _, h := range headingRE.FindAllStringSubmatch(fencedRE.ReplaceAllString(text, ""), -1) {
		a := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z':
				return r
			}
			return -1
		}, strings.ToLower(h[1]))
		list = append(list, a)
	}
	return list
}

// TestLinks: what a document links to is there, and so is each document that it names.
func TestLinks(t *testing.T) {
	checked := 0
	for _, name := range documents(t) {
		text := read(t, name)
		dir := filepath.Dir(name)
		for _, m := range linkRE.FindAllStringSubmatch(fencedRE.ReplaceAllString(text, ""), -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			path := name
			if target != "" {
				path = filepath.Join(dir, target)
			}
			if _, err := os.Stat(filepath.Join(root, path)); err != nil {
				t.Errorf("%s links to %s, which is not there", name, m[1])
				continue
			}
			if anchor != "" && !slices.Contains(anchors(read(t, path)), anchor) {
				t.Errorf("%s links to %s: no such heading", name, m[1])
			}
			checked++
		}
		for _, doc := range namedRE.FindAllString(text, -1) {
			if !named(dir, doc) {
				t.Errorf("%s names %s, which is neither below docs/ nor there", name, doc)
			}
			checked++
		}
	}
	if checked < 50 {
		t.Errorf("only %d links and names", checked)
	}
}

// named says whether a document is where its name leads: from the root, from the folder of whoever
// names it, or in docs/.
func named(dir, doc string) bool {
	for _, path := range []string{doc, filepath.Join(dir, doc), filepath.Join("docs", filepath.Base(doc))} {
		if _, err := os.Stat(filepath.Join(root, path)); err == nil {
			return true
		}
	}
	return false
}

// TestPackaged: documents that go into packages link to nothing that does not: to each other, and
// to pictures below docs/images.
func TestPackaged(t *testing.T) {
	packaged := 0
	for _, name := range documents(t) {
		if filepath.Dir(name) != "docs" {
			continue
		}
		packaged++
		for _, m := range linkRE.FindAllStringSubmatch(fencedRE.ReplaceAllString(read(t, name), ""), -1) {
			target, _, _ := strings.Cut(m[1], "#")
			if target == "" || strings.Contains(target, "://") {
				continue
			}
			if in := filepath.Dir(filepath.Clean(target)); in != "." && in != "images" {
				t.Errorf("%s links to %s, which no package has", name, m[1])
			}
		}
	}
	if packaged < 10 {
		t.Errorf("only %d documents", packaged)
	}
}

// TestAlerts: OPERATIONS.md says of each alert what to do, and of none that is not there.
func TestAlerts(t *testing.T) {
	names := func(from, expr string) (list []string) {
		for _, m := range regexp.MustCompile(expr).FindAllStringSubmatch(read(t, from), -1) {
			list = append(list, m[1])
		}
		return list
	}
	rules := names("scripts/prometheus/causeway.rules.yml", `alert: (\w+)`)
	var table []string
	for _, row := range names("docs/OPERATIONS.md", `(?m)^\| (Causeway[A-Z]\w+(?:, Causeway[A-Z]\w+)*) \|`) {
		table = append(table, strings.Split(row, ", ")...)
	}
	slices.Sort(rules)
	slices.Sort(table)
	if len(rules) < 10 || !slices.Equal(rules, table) {
		t.Errorf("the rules are\n%q, the table has\n%q", rules, table)
	}
	fleet, told := names("scripts/prometheus/fleet.rules.yml", `alert: (\w+)`), names("docs/KUBERNETES.md", `(?m)^\| (CausewayFleet\w+) \|`)
	if len(fleet) == 0 || !slices.Equal(fleet, told) {
		t.Errorf("the fleet's rules are\n%q, KUBERNETES.md has\n%q", fleet, told)
	}
}

// TestVersion: versions come from tags, and between tags from the newest release in CHANGELOG.md.
func TestVersion(t *testing.T) {
	repo := t.TempDir()
	run := func(name string, args ...string) (string, error) {
		cmd := exec.Command(name, args...)
		cmd.Dir = repo
		cmd.Env = append(os.Environ(), "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b", "GIT_CONFIG_GLOBAL=/dev/null",
			"GIT_AUTHOR_DATE=2026-11-22T01:02:03Z", "GIT_COMMITTER_DATE=2026-11-22T01:02:03Z", "SOURCE_DATE_EPOCH=")
		out, err := cmd.CombinedOutput()
		return strings.TrimSpace(string(out)), err
	}
	must := func(name string, args ...string) string {
		t.Helper()
		out, err := run(name, args...)
		if err != nil {
			t.Fatalf("%s %v: %v: %s", name, args, err, out)
		}
		return out
	}
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(repo, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(repo, "scripts/package"), 0o755); err != nil {
		t.Fatal(err)
	}
	write("scripts/package/version.sh", read(t, "scripts/package/version.sh"))
	write("CHANGELOG.md", "# Changelog\n\n## [Unreleased]\n\n## [1.2.0] - 2026-11-20\n\n## [1.1.0] - 2026-11-01\n")
	version := func() string { t.Helper(); return must("scripts/package/version.sh") }
	if got := version(); got != "1.2.0+nogit" {
		t.Errorf("without git: %q", got)
	}
	must("git", "init", "-q")
	must("git", "add", ".")
	must("git", "commit", "-qm", "one")
	between := regexp.MustCompile(`^1\.2\.0\+git20261122\.010203\.[0-9a-f]{8}$`)
	if got := version(); !between.MatchString(got) {
		t.Errorf("between releases: %q", got)
	}
	must("git", "tag", "v1.2.0")
	if got := version(); got != "1.2.0" {
		t.Errorf("at a tag: %q", got)
	}
	write("CHANGELOG.md", "# Changelog\n\n## [Unreleased]\n\nmore\n\n## [1.2.0] - 2026-11-20\n")
	if got := version(); !strings.HasPrefix(got, "1.2.0+git") || !strings.HasSuffix(got, ".dirty") {
		t.Errorf("changed: %q", got)
	}
	must("git", "commit", "-qam", "two")
	if got := version(); !between.MatchString(got) {
		t.Errorf("after a tag: %q", got)
	}
	must("git", "tag", "v1.3.0")
	if got, err := run("scripts/package/version.sh"); err == nil || !strings.Contains(got, "CHANGELOG.md") {
		t.Errorf("a tag that the changelog does not have: %q, %v", got, err)
	}
}

// TestChangelog: releases are in order, each with its day, and what is not released stands above
// them.
func TestChangelog(t *testing.T) {
	var heads []string
	for line := range strings.Lines(read(t, "CHANGELOG.md")) {
		if strings.HasPrefix(line, "## ") {
			heads = append(heads, strings.TrimSpace(line))
		}
	}
	if len(heads) < 2 || heads[0] != "## [Unreleased]" {
		t.Fatalf("headings %q", heads)
	}
	release := regexp.MustCompile(`^## \[\d+\.\d+\.\d+\] - \d{4}-\d{2}-\d{2}$`)
	for _, h := range heads[1:] {
		if !release.MatchString(h) {
			t.Errorf("heading %q", h)
		}
	}
}
