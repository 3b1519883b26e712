// Telegraf's agent with a few of its plugins, which tests/contrib/formats/test_lost_answers.py and bench/collectors run
// unmodified: main CONFIGURATION. The package of the whole program has some hundred dependencies more. bin/provision
// engines builds it as var/telegraf/telegraf.
package main

import (
	"context"
	"log"
	"os"

	"github.com/influxdata/telegraf/agent"
	"github.com/influxdata/telegraf/config"
	_ "github.com/influxdata/telegraf/plugins/inputs/influxdb_v2_listener"
	_ "github.com/influxdata/telegraf/plugins/inputs/socket_listener"
	_ "github.com/influxdata/telegraf/plugins/outputs/file"
	_ "github.com/influxdata/telegraf/plugins/outputs/http"
	_ "github.com/influxdata/telegraf/plugins/outputs/influxdb_v2"
	_ "github.com/influxdata/telegraf/plugins/outputs/loki"
	_ "github.com/influxdata/telegraf/plugins/parsers/influx"
	_ "github.com/influxdata/telegraf/plugins/serializers/influx"
	_ "github.com/influxdata/telegraf/plugins/serializers/json"
)

func main() {
	settings := config.NewConfig()
	if err := settings.LoadAll(os.Args[1]); err != nil {
		log.Fatal(err)
	}
	if err := agent.NewAgent(settings).Run(context.Background()); err != nil {
		log.Fatal(err)
	}
}
