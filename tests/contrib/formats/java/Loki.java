import ch.qos.logback.classic.LoggerContext;
import ch.qos.logback.classic.joran.JoranConfigurator;
import java.util.Scanner;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Logs with loki4j: java -cp 'JARS/*' Loki.java LOGBACK.XML. Each line of input, "FIRST COUNT", is so many lines. */
public class Loki {
    public static void main(String[] arguments) throws Exception {
        LoggerContext context = (LoggerContext) LoggerFactory.getILoggerFactory();
        context.reset();
        JoranConfigurator configurator = new JoranConfigurator();
        configurator.setContext(context);
        configurator.doConfigure(arguments[0]);
        Logger log = LoggerFactory.getLogger("web");
        Scanner input = new Scanner(System.in);
        while (input.hasNextInt()) {
            int first = input.nextInt();
            int count = input.nextInt();
            for (int n = first; n < first + count; n++) {
                log.info("line {}", n);
            }
            System.out.println("ok");
        }
    }
}
