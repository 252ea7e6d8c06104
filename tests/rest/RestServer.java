import java.util.Map;
import org.apache.iceberg.jdbc.JdbcCatalog;
import org.apache.iceberg.rest.RESTCatalogAdapter;
import org.apache.iceberg.rest.RESTCatalogServlet;
import org.eclipse.jetty.ee10.servlet.ServletContextHandler;
import org.eclipse.jetty.ee10.servlet.ServletHolder;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.server.ServerConnector;

/**
 * Iceberg's own REST catalog on a free port: tables and views in a database in memory, their files in a warehouse.
 *
 * <p>Arguments: the warehouse and a FileIO class. Prints its port, and ends when its standard input is closed.
 */
public final class RestServer {
  public static void main(String[] arguments) throws Exception {
    JdbcCatalog catalog = new JdbcCatalog();
    catalog.initialize(
        "rest",
        Map.of(
            "uri", "jdbc:h2:mem:rest;DB_CLOSE_DELAY=-1;DATABASE_TO_LOWER=TRUE",
            "jdbc.schema-version", "V1",
            "warehouse", arguments[0],
            "io-impl", arguments[1]));
    ServletContextHandler handler = new ServletContextHandler();
    handler.addServlet(new ServletHolder(new RESTCatalogServlet(new RESTCatalogAdapter(catalog))), "/*");
    Server server = new Server();
    ServerConnector connector = new ServerConnector(server);
    connector.setHost("127.0.0.1");
    server.addConnector(connector);
    server.setHandler(handler);
    server.start();
    System.out.println(connector.getLocalPort());
    System.in.read();
    System.exit(0);
  }
}
