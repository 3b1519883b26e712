import com.influxdb.client.InfluxDBClientFactory;
import com.influxdb.client.WriteApi;
import com.influxdb.client.WriteOptions;
import com.influxdb.client.domain.WritePrecision;
import com.influxdb.client.write.Point;
import java.util.Scanner;

/**
 * Writes points with InfluxDB's client for Java, as write.mjs does: java -cp 'JARS/*' FILE NAME. It prints "ok" at once,
 * because the client writes in a thread of its own.
 */
public class Write {
    public static void main(String[] arguments) {
        // docs/INTEGRATIONS.md
        Scanner input = new Scanner(System.in);
        while (input.hasNextInt()) {
            int first = input.nextInt();
            int count = input.nextInt();
            for (int n = first; n < first + count; n++) {
                Point point = Point.measurement(arguments[0]).addTag("place", "2, east = sun").addField("n", (long) n);
                point.addField("door", true).addField("note", "say \"hi\", back\\slash");
                client.writePoint(point.time(1767268800L + n, WritePrecision.S));
            }
            client.flush();
            System.out.println("ok");
        }
    }
}
