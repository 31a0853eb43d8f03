// Grafana's own types read a dashboard: it says what they refuse, and writes what they keep of it.
//
//	board < dashboard.json > kept.json
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

// refuse ends the program for an error that says something: the types return empty lists of errors.
func refuse(err error) {
	if err != nil && err.Error() != "" {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	plugins.RegisterDefaultPlugins()
	text, err := io.ReadAll(os.Stdin)
	refuse(err)
	var strict, board dashboard.Dashboard
	refuse(strict.UnmarshalJSONStrict(text)) // it checks everything, and keeps no panels
	refuse(json.Unmarshal(text, &board))
	refuse(board.Validate())
	kept, err := json.Marshal(board)
	refuse(err)
	os.Stdout.Write(kept)
}
