package soft

// graphState is what a session keeps for graphs and stream capture. Its zero value is ready.
type graphState struct{}
