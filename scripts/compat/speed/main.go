package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

type options struct {
	self, causeway, dir string
	gpu, only           string
	remote              string
	markdown            string
	rounds              int
	weights             int
	limit, rest         time.Duration
}

func main() {
	exe, err := os.Executable()
	if err != nil {
		exe = os.Args[0]
	}
	if len(os.Args) > 2 && os.Args[1] == "spawner" {
		if err := spawner(os.Stdin, os.Stdout, os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, "speed:", err)
			os.Exit(1)
		}
		return
	}
	build := filepath.Dir(filepath.Dir(exe))
	o := options{self: exe}
	flag.StringVar(&o.causeway, "causeway", filepath.Join(build, "bin/causeway"), "the causeway binary")
	flag.StringVar(&o.dir, "dir", filepath.Join(filepath.Dir(build), "scripts/compat"), "folder of the programs")
	flag.StringVar(&o.gpu, "gpu", "0", "GPU to forward to")
	flag.StringVar(&o.remote, "remote", "", "VM of a vGPU on a GPU server (causeway run --remote), in place of --gpu")
	flag.StringVar(&o.only, "only", "", "run programs whose command line matches this regular expression")
	flag.IntVar(&o.rounds, "rounds", 7, "samples of each measure on each side")
	flag.IntVar(&o.weights, "weights", 4, "size of the weights file in GB")
	flag.DurationVar(&o.limit, "limit", 5*time.Minute, "limit of one program")
	flag.DurationVar(&o.rest, "rest", time.Second, "pause before a program is started anew")
	flag.StringVar(&o.markdown, "markdown", "", "write the table, with peers' figures, to this file")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, &o); err != nil {
		fmt.Fprintln(os.Stderr, "speed:", err)
		os.Exit(1)
	}
}

// run measures every program; one that fails is reported and the others go on.
func run(ctx context.Context, o *options) error {
	var err error
	for _, p := range []*string{&o.causeway, &o.dir} {
		if *p, err = filepath.Abs(*p); err != nil {
			return err
		}
	}
	programs, err := load(programsOf(o.dir)...)
	if err != nil {
		return err
	}
	only, err := regexp.Compile(o.only)
	if err != nil {
		return fmt.Errorf("--only: %w", err)
	}
	tmp, err := os.MkdirTemp("", "causeway-speed")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	var failed []error
	var all []*pairs
	fmt.Println("name value unit native ratio goal")
	for _, p := range programs {
		if !only.MatchString(p.String()) || ctx.Err() != nil {
			continue
		}
		fmt.Fprintf(os.Stderr, "speed: %s\n", p)
		pair, err := measure(ctx, o, p, tmp)
		all = append(all, pair)
		for _, l := range pair.lines() {
			fmt.Println(l)
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "speed: %s: %v\n", p, err)
			failed = append(failed, fmt.Errorf("%s: %w", p, err))
		}
	}
	if o.markdown != "" {
		failed = append(failed, os.WriteFile(o.markdown, []byte(markdown(all)), 0o644))
	}
	return errors.Join(append(failed, ctx.Err())...)
}

// programsOf are the patterns of programs that can be measured, beside and in the folder of compat.
func programsOf(dir string) []string {
	return []string{filepath.Join(dir, "../bench/probe/*.c"), filepath.Join(dir, "speed/*.cu"), filepath.Join(dir, "speed/*.py")}
}

// command makes one side's command; dir is its folder for compiler caches.
func (o *options) command(ctx context.Context, p *program, forwarded bool, dir string) (*exec.Cmd, error) {
	argv := append([]string{"python3", p.file}, p.args...)
	if p.compiled() {
		argv = append([]string{p.binary}, p.args...)
	}
	if p.spawn > 0 {
		argv = append([]string{o.self, "spawner", o.rest.String()}, argv...)
	}
	side := "native"
	if forwarded {
		run := []string{o.causeway, "run", "--gpu", o.gpu}
		switch {
		case o.remote != "":
			run = []string{o.causeway, "run", "--remote", o.remote}
		case p.spawn > 0:
			run = append(run, "--warm", "1") // for every process, as in a VM
		}
		argv = append(append(run, "--"), argv...)
		side = "causeway"
	}
	cache := filepath.Join(dir, side)
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return nil, err
	}
	c := exec.CommandContext(ctx, argv[0], argv[1:]...)
	c.Dir = cache
	c.Env = append(os.Environ(), "PYTHONPATH="+filepath.Join(o.dir, "lib"), "PYTHONDONTWRITEBYTECODE=1", "SPEED_DIR="+dir,
		fmt.Sprintf("SPEED_WEIGHTS_GB=%d", o.weights), "TORCHINDUCTOR_CACHE_DIR="+cache+"/inductor", "TRITON_CACHE_DIR="+cache+"/triton")
	c.Stderr = os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = 5 * time.Second
	return c, nil
}

// build compiles a program: CUDA C++ with the nvcc that is there, C with the system's compiler.
func build(ctx context.Context, p *program, dir string) error {
	name := filepath.Base(p.file)
	p.binary = filepath.Join(dir, strings.TrimSuffix(name, filepath.Ext(name)))
	argv := []string{"cc", "-O2", "-o", p.binary, p.file, "-ldl", "-lpthread"}
	if strings.HasSuffix(p.file, ".cu") {
		nvcc, err := exec.LookPath("nvcc")
		if err != nil {
			nvcc = "/usr/local/cuda/bin/nvcc"
		}
		argv = []string{nvcc, "-O2", "-arch=sm_90", "-o", p.binary, p.file}
	}
	if out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", filepath.Base(argv[0]), err, out)
	}
	return nil
}
