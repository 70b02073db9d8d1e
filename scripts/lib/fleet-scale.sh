# A control plane with hosts that are not there, for scripts/fleet.sh --scale; sourced after
# kube.sh.

# scale_settings: what a large cluster sets. By default the controllers and the scheduler ask the
# API server 20 to 50 times a second, and that is what is measured.
scale_settings() {
  { cat "$ROOT/host/fleet/deploy/scheduler.yaml"; printf 'clientConnection: {kubeconfig: "%s", qps: 1000, burst: 2000}\nleaderElection: {leaderElect: false}\n' "$kube/pki/scheduler.kubeconfig"; } >"$kube/scheduler.yaml"
  kube_scheduler_more=(--config "$kube/scheduler.yaml")
  kube_manager_more=(--kube-api-qps 1000 --kube-api-burst 2000)
}

run_scale() { # HOSTS CLAIMS [PROFILE]
  kubectl apply -f "$ROOT/host/fleet/deploy/causeway-dra.yaml" >/dev/null
  (cd "$ROOT/scripts/kube" && CGO_ENABLED=0 go build -trimpath -o "$kube/hollow" ./hollow)
  "$kube/hollow" --kubeconfig "$kube/pki/admin.kubeconfig" --hosts "$1" --claims "$2" --scheduler "${3:-default-scheduler}"
}
