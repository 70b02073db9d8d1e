# The fleet's page in a browser, for scripts/fleet.sh --page; sourced after fleet.sh. The nodes are
# hollow: a control plane with objects, and no kubelet.

pictures=$BUILD/pictures

# hollow writes the objects; events name pods by the UIDs that they have.
hollow() {
  local hash=0 uids
  kubectl create namespace team >/dev/null
  kubectl create serviceaccount default -n team >/dev/null 2>&1 || true
  PYTHONHASHSEED=$hash python3 "$ROOT/scripts/kube/hollow.py" objects >"$kube/objects.json"
  jq '.items |= map(select(.kind != "Event"))' "$kube/objects.json" | kubectl create -f - >/dev/null
  PYTHONHASHSEED=$hash python3 "$ROOT/scripts/kube/hollow.py" status | kubectl replace --subresource=status -f - >/dev/null
  uids=$(kubectl get pods -n team -o json | jq '[.items[] | {key: ("OF " + .metadata.name), value: .metadata.uid}] | from_entries')
  jq --argjson uids "$uids" '.items |= map(select(.kind == "Event") | .involvedObject.uid |= $uids[.])' "$kube/objects.json" | kubectl create -f - >/dev/null
}

# browser OPTIONS... opens the page as people do; its script runs for some seconds.
browser() { timeout 90 chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir="$kube/chromium" --virtual-time-budget=7000 "$@" http://127.0.0.1:18080/ 2>>"$kube/log/chromium"; }

# shown TEXT...: the browser shows these.
shown() {
  local text
  browser --dump-dom >"$kube/dom"
  for text; do grep -qF -- "$text" "$kube/dom" || { echo "$text is missing" >>"$kube/log/chromium"; return 1; }; done
}

page_up() {
  kube_start web "$BUILD/bin/causeway-fleet" --kubeconfig "$kube/pki/admin.kubeconfig" web --listen 127.0.0.1:18080 --interval 1s
  await 30 "the page is served" curl -sf http://127.0.0.1:18080/readyz
}

# picture NAME WIDTH HEIGHT
picture() { mkdir -p "$pictures"; browser --window-size="$2,$3" --screenshot="$pictures/$1.png" >/dev/null && [ -s "$pictures/$1.png" ]; }

check_browser() {
  local f
  # Nobody is to call hollow nodes dead or to run their pods.
  kube_stop scheduler
  kube_stop manager
  page_up
  await 60 "an empty fleet says what to do" shown "No node offers GPUs of Causeway's" 'causeway-fleet claim NAME' 'class="chip good">live<'
  picture fleet-empty 1280 900 || die "no picture: $(tail -n 3 "$kube/log/chromium")"
  kubectl apply -f "$ROOT/host/fleet/deploy/causeway-dra.yaml" >/dev/null
  hollow
  await 60 "the browser shows the fleet, live: $(tail -n 1 "$kube/log/chromium")" shown 'class="chip good">live<' gpu-host-1 'NVIDIA H200' 'team/train-llm' '>Waiting<' 'cannot allocate all claims' '>cordoned<' '>NotReady<' \
    'drained=fault' '>open<' '>none<' 'gpu-server-9' '>ready<' 'no node yet' 'are free, too little for any claim that waits'
  [ "$(grep -c 'class="host"' "$kube/dom")" = 4 ] || die "hosts: $(grep -c 'class="host"' "$kube/dom")"
  picture fleet 1280 1580 || die "no picture: $(tail -n 3 "$kube/log/chromium")"
  picture fleet-phone 500 3600 || die "no picture: $(tail -n 3 "$kube/log/chromium")" # chromium makes no window that is narrower
  ok "the page in a browser: an empty fleet, and one with something of everything, live; pictures are in build/pictures"
  check_queries
  kube_stop apiserver KILL
  await 60 "the page says that it is old" shown 'This is as it was' 'class="chip bad">not up to date<' 'team/train-llm'
  picture fleet-old 1280 700 || die "no picture"
  ok "without the API server the page shows what was last read, and says so"
}

# controller_up: a controller with one GPU host, for what it exports. Of the hollow hosts it takes
# those of the network out.
controller_up() {
  net_hosts
  kubectl apply -f "$ROOT/host/fleet/deploy/causeway-fleet.yaml" >/dev/null
  kube_config fleet "$(kubectl -n causeway create token causeway-fleet --duration 8760h)"
  printf 'nodes: {causeway.dev/fabric: f1}\nhosts:\n- {name: gpu1}\n- {name: gpu2, address: "127.0.0.1:1"}\n' >"$kube/hosts.yaml"
  net_controller fleet1 --listen 127.0.0.1:18081
  await 30 "the controller leads" eval 'curl -sf http://127.0.0.1:18081/metrics | grep -qx "causeway_fleet_controller_leads 1"'
}

# check_queries: each query of the dashboard has data.
check_queries() {
  controller_up
  printf 'global: {scrape_interval: 1s}\nscrape_configs:\n- {job_name: fleet, static_configs: [{targets: ["127.0.0.1:18080", "127.0.0.1:18081", "10.78.0.2:9435"]}]}\n' >"$kube/prometheus.yml"
  kube_start prometheus prometheus --config.file="$kube/prometheus.yml" --storage.tsdb.path="$kube/prometheus" --web.listen-address=127.0.0.1:19091
  await 60 "each query has data" python3 "$ROOT/scripts/grafana/query.py" http://127.0.0.1:19091 "$ROOT/scripts/grafana/fleet.json" --no-rules
  python3 "$ROOT/scripts/grafana/query.py" http://127.0.0.1:19091 "$ROOT/scripts/grafana/fleet.json" --no-rules >"$kube/log/queries"
  # A causewayd that has the vGPU of a claim, as a hollow node has not.
  far create "claim-$(kubectl get resourceclaim -n team train-llm -o jsonpath='{.metadata.uid}')" --gpu soft --memory 1GiB >/dev/null
  await 60 "causeway-fleet top knows what it does" top_shows
  kube_stop prometheus
  ok "Prometheus reads causeway-fleet web and a controller: every query of the fleet's dashboard has data ($(grep -c ' ok$' "$kube/log/queries")); causeway-fleet top has the figures of a claim's vGPU"
}
top_shows() { "$BUILD/bin/causeway-fleet" --kubeconfig "$kube/pki/admin.kubeconfig" -n team top --prometheus http://127.0.0.1:19091 | tee "$kube/log/top" | grep '^team/train-llm  *0%  *0 B/'; }
