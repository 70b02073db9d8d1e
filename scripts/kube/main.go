// Command kube is the programs of a Kubernetes cluster in one binary, for tests: they share most of
// their code, and are compiled and linked once.
//
//	kube etcd|apiserver|controller-manager|scheduler|kubelet|kubectl [flags]
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	manager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	programs := map[string]func() *cobra.Command{
		"apiserver":          apiserver.NewAPIServerCommand,
		"controller-manager": manager.NewControllerManagerCommand,
		"scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
		"kubelet":            func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
		"kubectl":            kubectl.NewDefaultKubectlCommand,
	}
	if len(os.Args) < 2 {
		usage()
	}
	name := os.Args[1]
	os.Args = append([]string{name}, os.Args[2:]...)
	if name == "etcd" {
		etcdmain.Main(os.Args)
		return
	}
	program, ok := programs[name]
	if !ok {
		usage()
	}
	os.Exit(cli.Run(program()))
}

func usage() {
	fmt.Fprintln(os.Stderr, "usage: kube etcd|apiserver|controller-manager|scheduler|kubelet|kubectl [flags]")
	os.Exit(2)
}
