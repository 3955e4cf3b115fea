module lsmx/scripts/pebble

go 1.24

require (
	github.com/cockroachdb/pebble v1.1.5
	github.com/cockroachdb/pebble/v2 v2.1.2
)
