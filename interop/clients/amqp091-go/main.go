// amqp091-go: the scenarios of ../README.md.
package main

import (
	"fmt"
	"os"
	"runtime/debug"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

func main() {
	name := os.Args[1]
	if name == "version" {
		info, _ := debug.ReadBuildInfo()
		for _, module := range info.Deps {
			if strings.HasSuffix(module.Path, "amqp091-go") {
				fmt.Println(module.Version)
			}
		}
		return
	}
	defer func() {
		if failure := recover(); failure != nil {
			fmt.Println(failure)
			if name == "bad-password" && fmt.Sprint(failure) == amqp.ErrCredentials.Error() {
				fmt.Println("pass") // amqp091-go has its own text for this 403
			}
		}
	}()
	connection := must(connect())
	ch := must(connection.Channel())
	connecting(name, connection, ch)
	topology(name, connection, ch)
	publishing(name, connection, ch)
	consuming(name, connection, ch)
	tutorials(name, connection, ch)
	streaming(name, ch)
	connection.Close()
}
