package soft

// vmmState is what a session keeps for virtual memory, pools and sharing. Its zero value is ready.
type vmmState struct{}
