// watermill-amqp: the scenarios of ../README.md.
package main

import (
	"fmt"
	"os"
	"runtime/debug"
	"strings"
)

// What amqp091-go 1.10 says when a login is refused.
var refusals = map[string]string{
	"bad-password": `Exception (403) Reason: "username or password not allowed"`,
	"bad-vhost":    `Exception (403) Reason: "no access to this vhost"`,
}

func main() {
	name := os.Args[1]
	if name == "version" {
		info, _ := debug.ReadBuildInfo()
		for _, module := range info.Deps {
			if strings.Contains(module.Path, "watermill-amqp") {
				fmt.Println(module.Version)
			}
		}
		return
	}
	defer func() {
		if failure := recover(); failure != nil {
			fmt.Println(failure)
			if refusal := refusals[name]; refusal != "" && strings.Contains(fmt.Sprint(failure), refusal) {
				fmt.Println("pass")
			}
		}
	}()
	connecting(name)
	topology(name)
	publishing(name)
	consuming(name)
	tutorials(name)
	streaming(name)
}
