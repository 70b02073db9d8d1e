package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"causeway/host/report"
)

// topFlags of `causeway top`.
type topFlags struct {
	node     nodeFlags
	interval time.Duration
	sort     string
	reverse  bool
	hide     bool
	once     bool
	batch    bool
	number   int
}

func topCommand() *cobra.Command {
	var f topFlags
	c := &cobra.Command{
		Use:   "top [VM[/NAME]]",
		Short: "Watch GPUs, vGPUs and the processes of guests",
		Long: `Shows live who uses the GPUs: each GPU, each vGPU and each process of a guest, with the GPU time it used, memory, kernel
launches and copied bytes a second, and how long its work was held back for the sake of limits. h explains columns and keys. A narrow
terminal has fewer columns; NO_COLOR in the environment turns colours off.

Without a terminal, or with --once, it prints one picture after one interval; --batch goes on. With --json each picture is one
line of JSON. Without causewayd, the device processes are asked; GPUs' utilisation, temperature and power are not known then.`,
		Example: `  causeway top
  causeway top vm1 --sort memory --interval 500ms
  causeway top --batch -n 60 --interval 1s --json > minute.json`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: f.node.complete,
		RunE: func(cmd *cobra.Command, args []string) error {
			t, err := f.top(args)
			if err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
			defer stop()
			if err := f.live(ctx, t, cmd.OutOrStdout()); !errors.Is(err, errNoTerminal) {
				return err
			}
			return f.print(ctx, t, cmd.OutOrStdout())
		},
	}
	f.node.register(c)
	c.Flags().DurationVarP(&f.interval, "interval", "i", 2*time.Second, "time between readings")
	c.Flags().StringVarP(&f.sort, "sort", "s", "busy", "order: "+strings.Join(report.Orders(), ", "))
	c.Flags().BoolVarP(&f.reverse, "reverse", "r", false, "turn the order")
	c.Flags().BoolVar(&f.hide, "vgpus", false, "vGPUs only, without the processes of guests")
	c.Flags().BoolVar(&f.once, "once", false, "print one picture, as without a terminal")
	c.Flags().BoolVarP(&f.batch, "batch", "b", false, "print pictures one after the other")
	c.Flags().IntVarP(&f.number, "number", "n", 0, "end after this many pictures (default: without end)")
	_ = c.RegisterFlagCompletionFunc("sort", cobra.FixedCompletions(report.Orders(), cobra.ShellCompDirectiveNoFileComp))
	return c
}

// top is the state to begin with.
func (f *topFlags) top(args []string) (*report.Top, error) {
	if !slices.Contains(report.Orders(), f.sort) {
		return nil, fmt.Errorf("--sort %s: use one of %s", f.sort, strings.Join(report.Orders(), ", "))
	}
	if f.interval < report.LeastInterval || f.interval > report.MostInterval {
		return nil, fmt.Errorf("--interval %v: use %v to %v", f.interval, report.LeastInterval, report.MostInterval)
	}
	if f.number < 0 {
		return nil, fmt.Errorf("-n %d: use a number of pictures", f.number)
	}
	t := &report.Top{Interval: f.interval, Order: report.Order(f.sort), Reverse: f.reverse, Processes: !f.hide}
	if len(args) == 1 {
		t.Only = args[0]
	}
	return t, nil
}

// print writes pictures to a file or a pipe. Rates need two readings: the first makes no picture.
func (f *topFlags) print(ctx context.Context, t *report.Top, out io.Writer) error {
	pictures := f.number
	if f.once || !f.batch && pictures == 0 {
		pictures = 1
	}
	tick := time.NewTicker(f.interval)
	defer tick.Stop()
	for n := 0; ; n++ {
		r, err := f.node.read(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		t.Read(r)
		if n > 0 {
			if err := f.picture(t, out); err != nil {
				return err
			}
			if n == pictures {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (f *topFlags) picture(t *report.Top, out io.Writer) error {
	if f.node.json {
		r, rows := t.Record()
		return report.WriteRecord(out, r, rows)
	}
	text := report.Text(t.Lines())
	if f.batch {
		text += "\n"
	}
	_, err := io.WriteString(out, text)
	return err
}

// errNoTerminal says that there is none to draw on, or none was wanted.
var errNoTerminal = errors.New("no terminal")

// live draws on the terminal until q or ctx's end, and leaves it as it was.
func (f *topFlags) live(ctx context.Context, t *report.Top, out io.Writer) (err error) {
	screen, ok := out.(*os.File)
	if os.Getenv("TERM") == "dumb" || f.once || f.batch || f.node.json || f.number > 0 || !ok || !term.IsTerminal(int(screen.Fd())) || !term.IsTerminal(int(os.Stdin.Fd())) {
		return errNoTerminal
	}
	before, err := term.MakeRaw(int(os.Stdin.Fd()))
	if err != nil {
		return errNoTerminal
	}
	defer func() {
		_, werr := screen.WriteString(report.Leave)
		rerr := term.Restore(int(os.Stdin.Fd()), before)
		err = errors.Join(err, werr, rerr)
	}()
	if _, err := screen.WriteString(report.Enter); err != nil {
		return err
	}
	return f.routineLive(ctx, t, screen)
}

// answer is a reading, or why there is none.
type answer struct {
	reading *report.Reading
	err     error
}

// routineLive owns t. Readings are taken beside it, one at a time, so that keys work while a node
// is slow.
func (f *topFlags) routineLive(ctx context.Context, t *report.Top, screen *os.File) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	keys := make(chan []byte)
	go routineKeys(ctx, keys)
	sizes := make(chan os.Signal, 1)
	signal.Notify(sizes, unix.SIGWINCH, unix.SIGCONT)
	defer signal.Stop(sizes)
	answers := make(chan answer, 1)
	asking := false
	ask := func() {
		if asking {
			return
		}
		asking = true
		go func() {
			r, err := f.node.read(ctx)
			answers <- answer{r, err}
		}()
	}
	ask()
	tick := time.NewTicker(t.Interval)
	defer tick.Stop()
	var decoder report.Keys
	look := lookOf(os.Getenv)
	t.ASCII = !isUTF8(os.Getenv)
	for {
		width, height, err := term.GetSize(int(screen.Fd()))
		if err != nil || width <= 0 || height <= 0 {
			width, height = 80, 24
		}
		t.Resize(width, height)
		if _, err := screen.WriteString(look.Frame(t.Lines(), width)); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			ask()
		case a := <-answers:
			asking = false
			if a.err != nil {
				t.Failed(a.err)
			} else {
				t.Read(a.reading)
			}
		case s := <-sizes:
			if s == unix.SIGCONT { // a shell may have taken the terminal meanwhile
				_, _ = term.MakeRaw(int(os.Stdin.Fd()))
				_, _ = screen.WriteString(report.Enter)
			}
		case p, ok := <-keys:
			if !ok { // the terminal is gone
				return nil
			}
			for _, k := range decoder.Feed(p) {
				switch t.Key(k) {
				case report.Quit:
					return nil
				case report.Refresh:
					tick.Reset(t.Interval)
					ask()
				}
			}
		}
	}
}

// lookOf is how a terminal's styles are drawn: NO_COLOR (no-color.org) wants none that are colours.
func lookOf(getenv func(string) string) report.Look {
	if getenv("NO_COLOR") != "" {
		return report.Mono
	}
	return report.Colours
}

// isUTF8 reports whether the locale's characters are (locale(7)).
func isUTF8(getenv func(string) string) bool {
	set := strings.ToUpper(cmp.Or(getenv("LC_ALL"), getenv("LC_CTYPE"), getenv("LANG")))
	return strings.Contains(set, "UTF-8") || strings.Contains(set, "UTF8")
}

// routineKeys reads the terminal. It ends with ctx only after the next key: the process ends then.
func routineKeys(ctx context.Context, keys chan<- []byte) {
	defer close(keys)
	for {
		p := make([]byte, 64)
		n, err := os.Stdin.Read(p)
		if err != nil {
			return
		}
		select {
		case keys <- p[:n]:
		case <-ctx.Done():
			return
		}
	}
}
