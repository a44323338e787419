// Package early plays a fixture before the packages are initialised that only
// tests import: those take several times as long as the start of the rest, and
// thousands of fixtures are started. (The import path decides on the order.)
package early

import (
	"curfew/fixtures"
	_ "curfew/fixtures/bombs" // registered before Main looks for it
)

func init() { fixtures.Main() }
